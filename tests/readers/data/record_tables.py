"""Record what the logging classes of training libraries write themselves: ``python record_tables.py FOLDER``.

No training: the writers are handed ``loss(s) = 2.5 exp(-s / 10) + 0.5``, with NaN or Inf where said.
"""

import importlib.metadata
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType


def loss(s: float) -> float:
    return 2.5 * math.exp(-s / 10) + 0.5


def module(package: str, path: str) -> ModuleType:
    """One module of a package, without importing the package."""
    spec = importlib.util.spec_from_file_location("alone", importlib.metadata.distribution(package).locate_file(path))
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def main(folder: Path) -> None:
    """Write all of them."""
    import pandas as pd
    from lightning.pytorch.loggers import CSVLogger
    from transformers.trainer_callback import TrainerState

    # Lightning: a value a step, a validation loss every tenth step (a new column makes it write the file anew).
    logger = CSVLogger(folder, name="lightning", version=0, flush_logs_every_n_steps=5)
    logger.log_hyperparams({"lr": 0.1, "batch_size": 32})
    for s in range(40):
        logger.log_metrics({"train_loss": loss(s) if s != 30 else math.nan, "epoch": s // 10}, s)
        if s % 10 == 9:
            logger.log_metrics({"val_loss": loss(s) + 0.1 if s < 39 else math.inf, "epoch": s // 10}, s)
    logger.save()

    # timm: its module of summaries alone, without the rest of the package. After 12 epochs the run goes on without
    # evaluation: the columns of the later rows are fewer than those of the header.
    summary = module("timm", "timm/utils/summary.py")
    (folder / "timm").mkdir()
    for e in range(15):
        held_out = {"loss": loss(e) + 0.1, "top1": 60 + e} if e < 12 else None
        summary.update_summary(e, {"loss": loss(e)}, held_out, folder / "timm" / "summary.csv", lr=0.1 / (1 + e))

    # Transformers: the state that the Trainer saves; a gradient norm of Inf, two evaluation sets and the final row.
    state = TrainerState(max_steps=30, num_train_epochs=3, logging_steps=1, eval_steps=10, save_steps=10)
    for s in range(1, 31):
        state.global_step, state.epoch = s, s / 10
        norm = math.inf if s == 2 else 1 / s
        state.log_history.append(
            {"loss": round(loss(s), 4), "grad_norm": norm, "learning_rate": 1e-3, "epoch": state.epoch, "step": s}
        )
        if s % 10 == 0:
            state.log_history.append({"eval_g0_loss": loss(s), "eval_runtime": 0.5, "epoch": state.epoch, "step": s})
            state.log_history.append({"eval_g1_loss": math.nan, "epoch": state.epoch, "step": s})
    state.log_history.append({"train_runtime": 12.5, "train_loss": 1.5, "total_flos": 1e12, "epoch": 3.0, "step": 30})
    (folder / "transformers").mkdir()
    state.save_to_json(folder / "transformers" / "trainer_state.json")

    # tensorboard-reducer: mean and standard deviation over two runs, in its table.
    reduced = {
        "mean": {"train/loss": pd.Series([loss(s) for s in range(25)]), "lr": pd.Series([0.1] * 25)},
        "std": {"train/loss": pd.Series([0.5 / (1 + s) for s in range(25)]), "lr": pd.Series([0.0] * 25)},
    }
    (folder / "tensorboard_reducer").mkdir()
    write = module("tensorboard-reducer", "tensorboard_reducer/write.py")
    write.write_data_file(reduced, str(folder / "tensorboard_reducer" / "reduced.csv"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
