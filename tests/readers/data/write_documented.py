"""Write logs in the documented form of writers too large to install for a test: ``python write_documented.py``.

Each function repeats the lines of the writer that is named in README.md; the values are ours.
"""

import json
import math
from pathlib import Path

HERE = Path(__file__).parent


def loss(s: float) -> float:
    return 2.5 * math.exp(-s / 10) + 0.5


def save(name: str, lines: list[str]) -> None:
    path = HERE / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def ultralytics() -> None:
    """``BaseTrainer.save_metrics`` (8.3): header once, then ``%.6g`` of every value; a second run appends."""
    keys = ["time", "train/box_loss", "metrics/mAP50(B)", "val/box_loss", "lr/pg0"]
    lines = [("%s," * (1 + len(keys)) % ("epoch", *keys)).rstrip(",")]
    for run in range(2):
        for e in range(10):
            held_out = math.inf if (run, e) == (1, 3) else math.nan if (run, e) == (1, 4) else loss(e) + 0.1
            row = [e + 1, 3.5 * (e + 1), loss(e), e / 10, held_out, 0.01 / (1 + e)]
            lines.append(("%.6g," * len(row) % tuple(row)).rstrip(","))
    save("ultralytics/results.csv", lines)


def detectron2() -> None:
    """``JSONWriter``: ``json.dumps(..., sort_keys=True)`` of the scalars of each iteration, AP every tenth row."""
    rows = []
    for s in range(19, 400, 20):
        row = {"iteration": s, "total_loss": loss(s / 40) if s != 199 else math.nan, "lr": 0.02, "data_time": 0.01}
        rows.append(json.dumps(row | ({"bbox/AP": s / 10} if s % 200 == 199 else {}), sort_keys=True))
    save("detectron2/metrics.json", rows)


def fairseq() -> None:
    """``JsonProgressBar`` behind the logger's format; numbers are text (``"{:g}"``), validation rows end an epoch."""
    lines = ["2026-11-30 12:00:00 | INFO | fairseq_cli.train | task: TranslationTask"]
    for u in range(1, 31):
        row = {"epoch": 1 + (u - 1) // 10, "update": u / 10, "loss": f"{loss(u):g}", "ppl": f"{2 ** loss(u):g}"}
        row |= {"num_updates": str(u), "lr": "0.0005", "gnorm": "nan" if u == 15 else f"{1 / u:g}"}
        lines.append(f"2026-11-30 12:{u:02d}:00 | INFO | train_inner | {json.dumps(row)}")
        if u % 10 == 0:
            valid = {"epoch": u // 10, "valid_loss": f"{loss(u) + 0.1:g}", "valid_num_updates": str(u)}
            lines.append(f"2026-11-30 12:{u:02d}:30 | INFO | valid | {json.dumps(valid)}")
    save("fairseq/train.log", lines)


def llamafactory() -> None:
    """``LogCallback``: a record a logging step without empty values; texts for the times."""
    rows = []
    for s in range(5, 101, 5):
        row = {"current_steps": s, "total_steps": 100, "loss": round(loss(s / 5), 4), "lr": 1e-4, "epoch": s / 50}
        row |= {"percentage": float(s), "elapsed_time": f"0:00:{s % 60:02d}", "remaining_time": "0:01:00"}
        rows.append(json.dumps(row))
    rows.append(json.dumps({"current_steps": 100, "total_steps": 100, "eval_loss": 0.75, "epoch": 2.0}))
    save("llamafactory/trainer_log.jsonl", rows)


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


def olmo() -> None:
    """OLMo's console: a head line, then indented ``key=value`` with thousands separators."""
    lines = []
    for s in range(1, 16):
        front = f"2026-11-30T12:00:{s:02d}Z  host:0  olmo.train:967  INFO  "
        lines.append(f"{front}[step={s}/15,epoch=0]")
        lines.extend(
            f"    {k}={v}"
            for k, v in {
                "optim/total_grad_norm": f"{1 / s:.4f}",
                "train/CrossEntropyLoss": f"{loss(s):.3f}",
                "train/Perplexity": f"{round(math.exp(loss(s)) * 1000):,}",
                "throughput/total_tokens": f"{s * 4_194_304:,}",
            }.items()
        )
    save("text/olmo.log", lines)


if __name__ == "__main__":
    for write in (ultralytics, detectron2, fairseq, llamafactory, megatron, neox, llmc, olmo):
        write()
