"""Reading a million scalars from one event file: CPU seconds (user + system) of this reader and of its rivals.

Run: ``python tests/benchmarks/bench_tensorboard.py [--rivals] [--points N]``. Each measurement runs in a process of its
own; the ratio is what counts. Memory is the peak above the peak after the imports.
"""

from __future__ import annotations

import argparse
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "readers"))

TAGS = [
    f"train/{name}" for name in ("loss", "grad_norm", "lr", "accuracy", "entropy", "kl", "value", "ret", "fps", "scale")
]

SETUP = {
    "trajscope": "import trajscope.readers.tensorboard as tb; from trajscope.readers.tensorboard import walk, kernel;"
    "walk.decode(SMALL, compiled=True)",
    "read_run": "import trajscope.readers as r; r.readers(); from trajscope.readers.tensorboard import walk;"
    "walk.decode(SMALL, compiled=True)",
    "plain": "from trajscope.readers.tensorboard import walk",
    "accumulator": "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator",
}
CALL = {
    "trajscope": "n = sum(s.steps.size for s in walk.decode(PATH).series.values())",
    "read_run": "n = r.read_run(PATH).n_points",
    "plain": "n = sum(s.steps.size for s in walk.decode(PATH, compiled=False).series.values())",
    "accumulator": "e = EventAccumulator(str(PATH), size_guidance={'scalars': 0, 'tensors': 0}); e.Reload();"
    "g = e.Tags(); n = sum(len(e.Scalars(k)) for k in g['scalars']) + sum(len(e.Tensors(k)) for k in g['tensors'])",
}
FRAME = """
import time
from pathlib import Path
def peak():
    # of this very program: ru_maxrss keeps the peak of the parent over exec
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
PATH, SMALL = Path({path!r}), Path({small!r})
{setup}
base = peak()
t = time.process_time()
{call}
print(n, time.process_time() - t, peak() - base)
"""


def files(directory: Path, points: int) -> dict[str, Path]:
    """The three kinds of file: one event a value, ten values an event, TF2 tensors."""
    from tensorboard_files import many, scalar, tensor, write

    found = {}
    kinds = {
        "one": lambda: (scalar(TAGS[i % 10], 1 / (1 + i), i // 10) for i in range(points)),
        "ten": lambda: (many(dict.fromkeys(TAGS, 1 / (1 + i)), i) for i in range(points // 10)),
        "tensor": lambda: (
            tensor(TAGS[i % 10], i // 10, dtype=1, tensor_content=struct.pack("<f", 1 / (1 + i))) for i in range(points)
        ),
    }
    for kind, events in kinds.items():
        (directory / kind).mkdir()
        found[kind] = write(directory / kind, events())
    return found


def measure(who: str, path: Path, small: Path) -> tuple[int, float, float]:
    """Points, CPU seconds and peak memory (MiB above the import baseline) in a fresh process."""
    code = FRAME.format(path=str(path), small=str(small), setup=SETUP[who], call=CALL[who])
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=env)
    n, seconds, memory = done.stdout.split()
    return int(n), float(seconds), int(memory) / 1024


def rust_server(path: Path, points: int) -> tuple[int, float, float]:
    """Points, CPU seconds to load and peak memory of TensorBoard's Rust data server, checksums on, nothing sampled.

    It has no other door than gRPC, whose copy into Python is left out here (which favours the server).
    """
    import grpc
    import tensorboard_data_server
    from tensorboard.data.proto import data_provider_pb2 as proto
    from tensorboard.data.proto import data_provider_pb2_grpc as service

    port_file = path.parent / "port"
    port_file.unlink(missing_ok=True)
    flags = ["--reload=once", "--checksum", "--samples-per-plugin=scalars=all", "--port=0", f"--port-file={port_file}"]
    server = subprocess.Popen(
        [tensorboard_data_server.server_binary(), f"--logdir={path.parent}", *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        seen, still = -1.0, 0
        while still < 6:  # three seconds without any work: it has loaded
            time.sleep(0.5)
            fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
            now = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            still = still + 1 if now == seen and now > 0 else 0
            seen = now
        memory = int(Path(f"/proc/{server.pid}/status").read_text().split("VmHWM:")[1].split()[0])
        channel = grpc.insecure_channel(
            f"localhost:{port_file.read_text().strip()}", options=[("grpc.max_receive_message_length", 1 << 30)]
        )
        request = proto.ReadScalarsRequest(
            experiment_id="x",
            plugin_filter=proto.PluginFilter(plugin_name="scalars"),
            downsample=proto.Downsample(num_points=points),
        )
        answer = service.TensorBoardDataProviderStub(channel).ReadScalars(request)
        n = sum(len(tag.data.step) for run in answer.runs for tag in run.tags)
    finally:
        server.terminate()
        server.wait()
    return n, seen, memory / 1024


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--points", type=int, default=1_000_000)
    options.add_argument("--rivals", action="store_true", help="measure the other readers too (minutes)")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "small").mkdir()
        small = files(directory / "small", 1000)["one"]
        for kind, path in files(directory, chosen.points).items():
            rows = {who: min(measure(who, path, small) for _ in range(3)) for who in ("trajscope", "read_run", "plain")}
            if chosen.rivals:
                rows["rust server"] = rust_server(path, chosen.points)
                rows["accumulator"] = measure("accumulator", path, small)
            own = rows["read_run"][1]
            for who, (n, seconds, memory) in rows.items():
                head = f"{kind:8}{path.stat().st_size / 1e6:6.0f} MB {who:12}{n:9} points"
                print(f"{head} {seconds:8.3f} s {memory:7.1f} MiB {seconds / own:7.1f} x read_run", flush=True)


if __name__ == "__main__":
    main()
