"""Write logs in the documented form of writers too large to install for a test: ``python write_documented.py``.

Each function repeats the lines of the writer that is named in README.md; the values are ours.
"""

import math
from pathlib import Path

HERE = Path(__file__).parent


def loss(s: float) -> float:
    return 2.5 * math.exp(-s / 10) + 0.5


def save(name: str, lines: list[str]) -> None:
    path = HERE / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def megatron() -> None:
    """``training_log``: ``name: value`` between bars; no loss where the iteration was skipped."""
    lines = ["building GPT model ...", "> learning rate decay style: cosine"]
    for i in range(1, 21):
        text = f" [2026-11-30 12:00:{i:02d}] iteration {i:8d}/      20 | consumed samples: {i * 32:12d} |"
        text += f" elapsed time per iteration (ms): {100.0 + i:.1f} | learning rate: {1e-4:.6E} |"
        text += " global batch size:    32 |"
        if i != 3:
            text += f" lm loss: {loss(i):.6E} |"
        text += f" loss scale: {65536.0:.1f} | grad norm: {'nan' if i == 7 else f'{1 / i:.3f}'} |"
        text += f" number of skipped iterations: {int(i == 3):3d} | number of nan iterations: {int(i == 7):3d} |"
        lines.append(text)
    save("text/megatron.log", lines)


def neox() -> None:
    """GPT-NeoX' own line: ``samples/sec`` in front, ``lm_loss``."""
    lines = []
    for i in range(10, 201, 10):
        text = f" samples/sec: {31.5:.3f} | iteration {i:8d}/     200 | elapsed time per iteration (ms): {1015.9:.1f} |"
        text += f" learning rate: {6e-4:.3E} | approx flops per GPU: 41.2TFLOPS | lm_loss: {loss(i / 10):.6E} |"
        text += f" loss scale: 65536.0 | number of skipped iterations: {0:3d} | number of nan iterations: {0:3d} |"
        lines.append(text)
    save("text/neox.log", lines)


def llmc() -> None:
    """llm.c's ``main.log``: ``s:N trl:L lr:R norm:G``, ``s:N tel:L`` for validation."""
    lines = []
    for s in range(30):
        if s % 10 == 0:
            lines.append(f"s:{s} tel:{loss(s) + 0.1:.4f}")
        lines.append(f"s:{s} trl:{loss(s):.4f} lr:{6e-4:.6f} norm:{1 / (1 + s):.2f}")
    save("text/llmc_main.log", lines)


if __name__ == "__main__":
    for write in (megatron, neox, llmc):
        write()
