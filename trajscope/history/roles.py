"""What a channel means, guessed from its name with a stated confidence.

A name such as ``train/lm_loss`` is cut into words; rules look at the words, most specific first. The confidence is 0.95
where the name leaves no doubt (``grad_norm``), 0.8 where a convention is needed (``eval/loss`` as the validation loss)
and 0.5 where other readings are common (a bare ``reward``). A guess never overrides what the user says
(``--role NAME=ROLE``, ``[roles]`` in trajscope.toml).
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["BIGGER_IS_BETTER", "ROLES", "guess_role", "split_name"]

#: Every role, with what it means and its unit.
ROLES: dict[str, str] = {
    "loss": "training loss (or the loss that the optimizer minimises)",
    "val_loss": "loss on held-out data",
    "accuracy": "training accuracy or another training score; bigger is better",
    "val_accuracy": "accuracy or another score on held-out data; bigger is better",
    "perplexity": "exponential of a training loss; smaller is better",
    "val_perplexity": "exponential of a validation loss; smaller is better",
    "val_error": "an error rate or distance on held-out data; smaller is better",
    "error": "an error rate or distance on training data; smaller is better",
    "return": "return of an episode or its mean; bigger is better",
    "eval_return": "return under evaluation; bigger is better",
    "episode_length": "steps in an episode",
    "success": "share of successful episodes; bigger is better",
    "grad_norm": "norm of the gradient, before clipping where the log tells",
    "grad_cos": "cosine of successive gradients or another coherence of gradients",
    "update_norm": "norm of the parameter update",
    "param_norm": "norm of the parameters",
    "lr": "learning rate",
    "momentum": "momentum coefficient",
    "weight_decay": "weight decay coefficient",
    "entropy": "entropy of the policy",
    "kl": "Kullback-Leibler divergence (approximate)",
    "clip_fraction": "share of samples (PPO) or updates that were clipped",
    "policy_loss": "loss of the policy (actor)",
    "value_loss": "loss of the value function (critic)",
    "td_error": "temporal-difference error",
    "q_value": "estimated action value",
    "explained_variance": "share of the variance of returns explained by the value function",
    "aux_loss": "a part of the loss or an auxiliary loss",
    "loss_scale": "loss scale of mixed precision",
    "skipped": "skipped or non-finite steps, counted",
    "throughput": "work done a second",
    "step_time": "seconds a step or another duration",
    "elapsed": "seconds since the start",
    "memory": "memory in use",
    "system": "hardware counters",
    "step": "a step counter",
    "epoch": "epoch counter",
    "tokens": "tokens or samples seen so far",
    "batch_size": "batch size",
    "exploration": "exploration rate or noise",
    "temperature": "entropy coefficient or sampling temperature",
}

#: Roles that measure performance, by orientation.
BIGGER_IS_BETTER: dict[str, bool] = {
    "return": True,
    "eval_return": True,
    "success": True,
    "accuracy": True,
    "val_accuracy": True,
    "loss": False,
    "val_loss": False,
    "perplexity": False,
    "val_perplexity": False,
    "val_error": False,
    "error": False,
}

_HELD_OUT = {
    "val", "valid", "validation", "eval", "evaluation", "evaluations", "test", "testing", "heldout", "dev", "holdout",
    "g0", "g1",
}  # fmt: skip
_SCORE = {
    "acc", "accuracy", "top1", "top5", "acc1", "acc5", "f1", "map", "map50", "auc", "auroc", "bleu", "ssim", "psnr",
    "iou", "miou", "recall", "precision", "r2", "dice", "rouge", "score", "hellaswag", "em", "ap", "ap50", "ndcg",
    "hit", "mrr",
}  # fmt: skip
_ERROR = {"wer", "cer", "mse", "mae", "rmse", "fid", "error", "err", "mape", "bpc", "bpb"}
_PARTS = {
    "aux", "auxiliary", "z", "reg", "regularization", "penalty", "moe", "balance", "bbox", "cls", "dfl", "box", "giou",
}  # fmt: skip
_TIME = {"time", "duration", "seconds", "secs", "ms", "latency", "elapsed"}


def split_name(name: str) -> list[str]:
    """Cut a channel name into lower-case words.

    >>> split_name("train/lmLoss_epoch")
    ['train', 'lm', 'loss', 'epoch']
    """
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return [w for w in re.split(r"[^A-Za-z0-9]+", spaced.lower()) if w]


@lru_cache(maxsize=65536)
def guess_role(name: str) -> tuple[str, float]:
    """Guess the role of a channel from its name.

    Parameters
    ----------
    name : str
        Channel name as logged.

    Returns
    -------
    role : str
        One of `ROLES`, or the empty string where nothing fits.
    confidence : float
        Between 0 and 1: 0.95 unmistakable, 0.8 by convention, 0.5 plausible, 0 none.

    Examples
    --------
    >>> guess_role("train/grad_norm")
    ('grad_norm', 0.95)
    >>> guess_role("eval/loss")
    ('val_loss', 0.95)
    >>> guess_role("rollout/ep_rew_mean")
    ('return', 0.95)
    >>> guess_role("banana")
    ('', 0.0)
    """
    words = split_name(name)
    if not words:
        return "", 0.0
    return _by_words(words, set(words), "".join(words))


def _by_words(words: list[str], has: set[str], glued: str) -> tuple[str, float]:
    held_out = bool(has & _HELD_OUT) or words[0] in {"val", "eval", "test", "vl", "validate"}
    last = words[-1]

    def any_of(*options: str) -> bool:
        return any(o in has for o in options)

    def contains(*fragments: str) -> bool:
        return any(f in glued for f in fragments)

    # --- system and bookkeeping, before anything that shares a word with them
    if words[0] in {"system", "gpu", "cpu", "disk", "proc", "network"} or contains("systemgpu", "gpumemory"):
        return "system", 0.95
    if contains("learningrate") or any_of("lr") or glued in {"eta"} or last in {"lr", "lr0"} or contains("lrpg"):
        return "lr", 0.95
    if contains("lossscale", "gradscaler", "gradscale"):
        return "loss_scale", 0.95
    if contains("skippediter", "naniter", "overflow", "skippedstep", "nonfinite", "preemptioncount"):
        return "skipped", 0.95
    if contains("weightdecay"):
        return "weight_decay", 0.95
    if contains("clipfrac", "clipratio", "fracclipped"):
        return "clip_fraction", 0.95
    if glued in {"momentum", "beta1", "beta2", "betas"} or (last == "momentum" and len(words) <= 2):
        return "momentum", 0.8

    # --- gradients, updates, parameters
    if any_of("cos", "cosine", "coherence") and contains("grad", "momentum"):
        return "grad_cos", 0.8
    if contains("gradnorm", "gradientnorm", "gnorm", "gradl2", "totalnorm", "normgrad", "gradientl2") or (
        any_of("grad", "gradient", "gradients", "grads") and any_of("norm", "l2")
    ):
        return "grad_norm", 0.95 if len(words) <= 4 else 0.5
    if contains("updatenorm", "deltanorm", "stepnorm") or (any_of("update", "updates") and any_of("norm", "l2")):
        return "update_norm", 0.95
    if contains("paramnorm", "paramsnorm", "weightnorm", "parameternorm", "normparam") or (
        any_of("param", "params", "weights", "weight") and any_of("norm", "l2")
    ):
        return "param_norm", 0.95

    # --- reinforcement learning
    if contains("explainedvar", "vfexplained"):
        return "explained_variance", 0.95
    if contains("approxkl", "klcoeff", "klloss", "klmean") or any_of("kl", "kld"):
        if contains("klcoeff", "curklcoeff"):
            return "temperature", 0.8
        return "kl", 0.95
    if contains("entcoef", "entropycoef", "entropycoeff", "alphavalue") or glued in {"alpha", "temperature"}:
        return "temperature", 0.8
    if any_of("entropy") or glued.endswith("entropyloss") or last == "ent":
        if contains("crossentropy"):
            return ("val_loss" if held_out else "loss"), 0.8
        return "entropy", 0.8 if contains("entropyloss") else 0.95
    if (
        contains("valueloss", "vfloss", "criticloss", "qfloss", "qf1loss", "qf2loss", "losscritic", "lossvalue")
        or (any_of("loss", "losses") and any_of("critic", "vf", "value", "q", "q1", "q2", "qf", "baseline", "v"))
        or glued in {"lossq", "lossv", "valueloss"}
    ):
        return "value_loss", 0.95
    if contains("policyloss", "actorloss", "policygradientloss", "pgloss", "losspi", "losspolicy") or (
        any_of("loss") and any_of("actor", "policy", "pi", "pg")
    ):
        return "policy_loss", 0.95
    if contains("tderror"):
        return "td_error", 0.95
    if contains("eplen", "episodelen", "eplength", "episodelength", "lenmean", "eplenmean") or glued in {"l", "eplens"}:
        return "episode_length", 0.95 if glued != "l" else 0.5
    if contains("successrate", "winrate", "battlewon", "successmean") or last == "success":
        return "success", 0.8
    if contains(
        "eprew", "episodereward", "episodicreturn", "episodereturn", "epret", "cumulativereward", "returnmean"
    ) or (
        any_of("return", "returns", "reward", "rewards", "rew", "ret")
        and not any_of("std", "var", "loss", "scale", "coef", "normalized", "running")
    ):
        tail = any_of("min", "max", "std", "var")
        clear = contains("eprew", "episode", "epret", "return", "cumulative", "mean", "average", "eval")
        confidence = 0.5 if tail or not clear else 0.95
        return ("eval_return" if held_out else "return"), confidence
    if glued == "r":
        return "return", 0.5
    if any_of("epsilon", "exploration") or contains("explorationrate", "epsgreedy"):
        return "exploration", 0.8
    if any_of("q", "qvals", "qvalue", "qvalues", "qmean", "meanq", "qtaken", "targetmean") or contains(
        "qvals", "qvalue", "qtaken", "meanq"
    ):
        return "q_value", 0.5

    # --- losses and scores
    if any_of("perplexity", "ppl"):
        return ("val_perplexity" if held_out else "perplexity"), 0.95
    if any_of("loss", "losses", "nll", "objective", "trl", "tel", "crossentropy") or last.endswith("loss"):
        return _loss(words, has, glued, held_out)
    if has & _SCORE or last.startswith(("acc", "top1", "top5", "map50")):
        return ("val_accuracy" if held_out or "bbox" in has or contains("metricsmap") else "accuracy"), 0.8
    if has & _ERROR:
        return ("val_error" if held_out else "error"), 0.5

    # --- clocks and counters
    if (
        contains("samplespersec", "tokenspersec", "persecond", "itersper", "iterationspersec", "itpersec", "tflops")
        or any_of("fps", "throughput", "speed", "tps")
        or contains("persecond", "persec")
    ):
        return "throughput", 0.95
    if contains("globalbatchsize", "batchsize"):
        return "batch_size", 0.95
    if any_of("epoch", "epochs") and len(words) <= 2:
        return "epoch", 0.95
    if contains("consumedsamples", "consumedtokens", "tokensseen", "totaltokens", "numinputtokens") or last in {
        "tokens",
        "samples",
    }:
        return "tokens", 0.95
    if any_of("memory", "mem") or last in {"mem", "gb", "mb"}:
        return "memory", 0.8
    if contains(
        "timeelapsed", "elapsedtime", "accumulated", "timetotal", "totaltime", "runtime", "traintime"
    ) and not contains("elapsedtimeper"):
        return "elapsed", 0.8
    if has & _TIME or contains("stepavg", "timeper"):
        return "step_time", 0.8
    if glued in {
        "step",
        "steps",
        "globalstep",
        "iteration",
        "iter",
        "timesteps",
        "totaltimesteps",
        "nupdates",
        "trainingiteration",
    }:
        return "step", 0.95
    return "", 0.0


def _loss(words: list[str], has: set[str], glued: str, held_out: bool) -> tuple[str, float]:
    """Tell the training loss, the held-out loss and parts of a loss apart."""
    if has & {"tel"}:
        return "val_loss", 0.8
    main = {
        "loss", "losses", "train", "training", "trainer", "lm", "total", "nll", "step", "epoch", "mean", "avg", "ce",
        "ctc", "average",
        "cross", "entropy", "crossentropy", "objective", "trl", "running", "batch", "val", "valid", "validation",
        "eval", "evaluation", "test", "dev", "iter", "rollout", "learner", "info", "g0", "g1",
    }  # fmt: skip
    extra = [w for w in words if w not in main and not w.isdigit()]
    if held_out:
        return "val_loss", 0.95 if not extra else 0.8 if len(extra) == 1 else 0.5
    if not extra:
        return "loss", 0.95
    if has & {
        "aux",
        "auxiliary",
        "z",
        "reg",
        "regularization",
        "penalty",
        "moe",
        "balance",
        "bbox",
        "cls",
        "dfl",
        "box",
        "giou",
    }:
        return "aux_loss", 0.8
    return ("loss", 0.5) if len(extra) == 1 else ("aux_loss", 0.5)
