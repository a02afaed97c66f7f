"""Record what the training libraries write themselves: ``python record_libraries.py FOLDER FAIRSEQ DETECTRON2``.

The last two are unpacked source packages. Each library's own logging code runs; of fairseq its progress bars alone.
The values are ``loss(s) = 2.5 exp(-s / 10) + 0.5`` except LLaMA-Factory's, whose callback sits in a real training by
the Trainer of transformers (a linear model on 256 rows, on the CPU).
"""

import argparse
import contextlib
import importlib
import logging
import math
import sys
import types
from pathlib import Path


def loss(s: float) -> float:
    return 2.5 * math.exp(-s / 10) + 0.5


def ultralytics(folder: Path) -> None:
    """``BaseTrainer.save_metrics``: ten epochs, then a second run with ``exist_ok`` appends to the same file."""
    from ultralytics.engine.trainer import BaseTrainer

    for run in range(2):
        trainer = argparse.Namespace(csv=folder / "ultralytics" / "results.csv", train_time_start=0.0)
        clock = types.SimpleNamespace(time=lambda t=trainer: 3.5 * (t.epoch + 1))
        sys.modules[BaseTrainer.__module__].time = clock
        for trainer.epoch in range(10):
            e = trainer.epoch
            held_out = math.inf if (run, e) == (1, 3) else math.nan if (run, e) == (1, 4) else loss(e) + 0.1
            metrics = {"train/box_loss": loss(e), "metrics/mAP50(B)": e / 10, "val/box_loss": held_out}
            BaseTrainer.save_metrics(trainer, metrics | {"lr/pg0": 0.01 / (1 + e)})


def fairseq(folder: Path, source: Path) -> None:
    """``JsonProgressBar`` behind fairseq's log format: three epochs of ten updates, a validation after each."""
    package = types.ModuleType("fairseq_logging")
    package.__path__ = [str(source / "fairseq" / "logging")]
    sys.modules[package.__name__] = package
    bars = importlib.import_module("fairseq_logging.progress_bar")
    (folder / "fairseq").mkdir()
    handler = logging.FileHandler(folder / "fairseq" / "train.log")
    form = "%(asctime)s | %(levelname)s | %(name)s | %(message)s"  # as in fairseq_cli/train.py
    handler.setFormatter(logging.Formatter(form, "%Y-%m-%d %H:%M:%S"))
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger().setLevel(logging.INFO)
    logging.getLogger("fairseq_cli.train").info("task: TranslationTask")
    for epoch in range(1, 4):
        bar = bars.progress_bar(list(range(10)), log_format="json", log_interval=1, epoch=epoch)
        for i in bar:
            u = 10 * (epoch - 1) + i + 1
            stats = {"loss": loss(u), "ppl": 2 ** loss(u), "wps": 1000.0, "num_updates": u, "lr": 0.0005}
            bar.log(stats | {"gnorm": math.nan if u == 15 else 1 / u}, tag="train_inner", step=u)
        held_out = bars.progress_bar([0], log_format="json", epoch=epoch, prefix="valid on 'valid' subset")
        held_out.print({"loss": loss(u) + 0.1, "num_updates": u, "best_loss": loss(u)}, tag="valid", step=u)
        bar.print({"loss": loss(u - 5), "num_updates": u, "wall": 30.0 * epoch}, tag="train", step=u)


def llamafactory(folder: Path) -> None:
    """``LogCallback`` in a training of 100 steps, logged every 5, evaluated every 50."""
    import torch
    from llamafactory.train.callbacks import LogCallback
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)

        def forward(self, x, labels):
            out = self.linear(x)
            return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}

    torch.manual_seed(0)
    x = torch.randn(256, 4)
    rows = [{"x": r, "labels": r.sum(-1, keepdim=True)} for r in x]
    settings = TrainingArguments(
        output_dir=str(folder / "llamafactory"), max_steps=100, per_device_train_batch_size=16, logging_steps=5,
        eval_strategy="steps", eval_steps=50, learning_rate=0.02, report_to=[], save_strategy="no", use_cpu=True,
        include_num_input_tokens_seen="no", disable_tqdm=True,
    )  # fmt: skip
    Trainer(Model(), settings, train_dataset=rows, eval_dataset=rows[:32], callbacks=[LogCallback()]).train()


def olmo(folder: Path) -> None:
    """``setup_logging`` and ``Trainer.log_metrics_to_console``: fifteen steps, a loss of NaN at the last."""
    from olmo import util
    from olmo.train import Trainer

    (folder / "text").mkdir(exist_ok=True)
    with (folder / "text" / "olmo.log").open("w") as stream, contextlib.redirect_stdout(stream):
        logging.getLogger().handlers.clear()
        util.setup_logging()
        util.log_extra_field("hostname", "host")
        for s in range(1, 16):
            metrics = {
                "optim/total_grad_norm": 1 / s,
                "train/CrossEntropyLoss": loss(s) if s < 15 else math.nan,
                "train/Perplexity": math.exp(loss(s)) * 1000,
                "throughput/total_tokens": s * 4_194_304,
                "System/Peak GPU Memory (MB)": 40123.5,
            }
            Trainer.log_metrics_to_console(None, f"[step={s}/15,epoch=0]", metrics)
        Trainer.log_metrics_to_console(None, "validation", {"eval/validation/CrossEntropyLoss": loss(15) + 0.1})


def detectron2(folder: Path, source: Path) -> None:
    """``EventStorage`` and ``JSONWriter``: 400 iterations written every 20, a loss of NaN, AP twice."""
    sys.path.insert(0, str(source))
    from detectron2.utils.events import EventStorage, JSONWriter

    (folder / "detectron2").mkdir(exist_ok=True)
    writer = JSONWriter(str(folder / "detectron2" / "metrics.json"))
    with EventStorage() as storage:
        for s in range(400):
            storage.put_scalar("total_loss", loss(s / 40) if s != 199 else math.nan, smoothing_hint=False)
            storage.put_scalar("lr", 0.02 / (1 + s // 200), smoothing_hint=False)
            storage.put_scalar("data_time", 0.01)
            if s % 200 == 199:
                storage.put_scalar("bbox/AP", s / 10, smoothing_hint=False)
            if s % 20 == 19:
                writer.write()
            storage.step()
    writer.close()


if __name__ == "__main__":
    where = Path(sys.argv[1])
    where.mkdir(exist_ok=True)
    ultralytics(where)
    llamafactory(where)
    fairseq(where, Path(sys.argv[2]))
    olmo(where)
    detectron2(where, Path(sys.argv[3]))
