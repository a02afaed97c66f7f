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

_HELD_OUT = frozenset(
    {
        "val", "vl", "valid", "validate", "validation", "eval", "evaluate", "evaluation", "evaluations", "test",
        "testing", "heldout", "holdout", "dev",
    }
)  # fmt: skip
_SCORES = (
    r"acc(uracy)?\d?|top ?\d|f1|m ?ap(50)?( 95)?|ap(50|75)?|ar|pck|auc|auroc|bleu|ssim|psnr|m ?iou|recall|precision"
    r"|r2|dice|rouge\d?|hellaswag|em|ndcg|hit|mrr|coco eval bbox"
)
_ERRORS = r"wer|cer|mse|mae|rmse|fid|error|err|mape|bpc|bpb|nme"
_REWARD = r"rewards?|returns?|rew|ret"
#: Parts of a path that say where a value comes from and not what it is.
_CONTAINERS = re.compile(r"(?i)(?:^|(?<=/))(?:ray/tune|default_policy|learner_stats|learners?|info|time|q_learning)/")

#: (role, role on held-out data, confidence, what the words must hold, what they must not). The first that fits counts.
#: The words of a name are joined by single blanks; every pattern is searched between word boundaries.
_RULES: tuple[tuple[str, str, float, str, str], ...] = (
    # what looks like something else
    ("system", "", 0.95, r"^(system|gpu|cpu|disk|proc|network)|gpu memory|(cpu|ram|gpu) util \w+", ""),
    ("param_norm", "", 0.95, r"var gnorm", ""),
    ("", "", 0.0, r"exp avg( sq)?|^delta|target entropy|num (examples|samples)|^n (params|parameters)", ""),
    # optimizer
    ("lr", "", 0.95, r"learning ?rate|learning rate \w+|lr\d?|^eta$|lrpg", r"scheduler step"),
    ("loss_scale", "", 0.95, r"(loss|grad) ?scaler?", ""),
    ("skipped", "", 0.95, r"(skipped|nan|inf) (iter|iteration|step|batch|update)(e?s)?( .*)?|overflows?"
     r"|non ?finite( .*)?", ""),
    ("weight_decay", "", 0.95, r"weight ?decay", ""),
    ("clip_fraction", "", 0.95, r"clip ?(frac|fraction|ratio)|frac clipped|clipping rate", ""),
    ("momentum", "", 0.8, r"^(momentum|beta ?[12]|betas|\w+ momentum)$", ""),
    ("grad_cos", "", 0.8, r"(cos|cosine|coherence).* (grads?|gradients?|momentum)|(grads?|gradients?|momentum).* "
     r"(cos|cosine|coherence)", ""),
    ("grad_norm", "", 0.95, r"g ?norm|grad gnorm|total norm|(grads?|gradients?).*(norm|l2)|norm grad|grad(ient)?norm",
     r"std|var|^max"),
    ("grad_norm", "", 0.5, r"^norm$", ""),
    ("update_norm", "", 0.95, r"(updates?|delta|step) ?(l2 )?norm|updates? .*(norm|l2)", ""),
    ("param_norm", "", 0.95, r"(params?|parameters?|weights?).*(norm|l2)|norm params?|(param|weight)norm", ""),
    # reinforcement learning
    ("explained_variance", "", 0.95, r"(vf )?explained ?var(iance)?", ""),
    ("temperature", "", 0.8, r"kl coeff?|ent(ropy)? ?coeff?|alpha value|^(alpha|temperature)$|^policy beta$", "loss"),
    ("aux_loss", "", 0.8, r"alpha loss|ent(ropy)? coeff? loss", ""),
    ("kl", "", 0.95, r"approx ?kl|kl|kld|kl ?div(ergence)?", ""),
    ("entropy", "", 0.8, r"entropy loss", "cross"),
    ("entropy", "", 0.95, r"entropy|^ent$", r"cross|crossentropy"),
    ("td_error", "", 0.95, r"td ?error", ""),
    ("value_loss", "", 0.95, r"(critic|vf|value|qf?\d?|baseline|v)( \w+)? loss|loss (critic|vf|value|qf?\d?|v)"
     r"|valueloss|vfloss", r"lm loss value"),
    ("policy_loss", "", 0.95, r"(actor|policy|pi|pg)( gradient| \w+)? loss|loss (actor|policy|pi|pg)",
     r"policy total|total loss"),
    ("episode_length", "", 0.95, r"(eps?|episode)s? ?len(gth)?s?|(test )?ep len( \w+)?|len mean", ""),
    ("episode_length", "", 0.5, r"^l$", ""),
    ("success", "", 0.8, r"success(es)?|is success|success ?rate|win ?rate|battle won", ""),
    ("", "", 0.0, rf"(std|var|stddev)( .*)? ({_REWARD})|({_REWARD}) (std|var|stddev|loss|scale|coeff?)", ""),
    ("return", "eval_return", 0.5, rf"({_REWARD}) (min|max)|(min|max)( \w+){{0,2}} ({_REWARD})", ""),
    ("return", "", 0.5, rf"(int|intrinsic|extrinsic|curiosity|rnd)( \w+)? ({_REWARD})", ""),
    ("return", "eval_return", 0.95, rf"(eps?|episode|episodic|cumulative|mean|average|avg|eval|test)( \w+)? ({_REWARD})"
     rf"|({_REWARD}) (mean|average|avg)|returns?|(ep|test)(rew|ret)|(eval)?return", r"per step|normalized|running"),
    ("return", "eval_return", 0.5, rf"{_REWARD}|^r$", ""),
    ("exploration", "", 0.8, r"exploration( \w+)*|eps greedy", ""),
    ("exploration", "", 0.5, r"epsilon", ""),
    ("", "", 0.0, r"^(std|var).* (q|v)\d? ?vals", ""),
    ("q_value", "", 0.5, r"(mean|max|min|average) (q|v)\d?( vals)?|(q|v)\d? ?(vals?|values?|taken|mean)|value estimate"
     r"|target mean", ""),
    # losses and scores
    ("perplexity", "val_perplexity", 0.95, r"perplexity|ppl", ""),
    ("val_loss", "", 0.8, r"^tel$", ""),
    ("loss?", "", 0.0, r"loss(es)?|\w+loss|nll|objective|trl|crossentropy|cross entropy", ""),
    ("accuracy", "val_accuracy", 0.8, _SCORES, r"ar|coco eval"),
    ("", "val_accuracy", 0.8, r"ar|coco eval bbox", ""),
    ("accuracy", "val_accuracy", 0.5, r"\w+ score", ""),
    ("error", "val_error", 0.5, _ERRORS, ""),
    # clocks and counters
    ("tokens", "", 0.95, r"(consumed|total|seen|input|trained|num)( \w+)? (tokens|samples)|(tokens|samples) seen"
     r"|tokens( seen)?$", r"per|opt"),
    ("throughput", "", 0.95, r"(samples|tokens|steps|batches|iters?|it|tok|flops) (per )?s(ec(ond)?)?|fps|[tswu]ps"
     r"|throughput|tokens per \w+ per second|t?flo ?ps|mfu", r"total|time"),
    ("batch_size", "", 0.95, r"(global )?batch ?size", ""),
    ("elapsed", "", 0.8, r"^(wandb )?runtime$|time elapsed|elapsed time|accumulated .*time|time total( s)?"
     r"|total (time|duration)|^train time$|time since restore", r"per"),
    ("elapsed", "", 0.5, r"^time$", ""),
    ("step_time", "", 0.8, r"time|duration|seconds|secs|ms|latency|elapsed|runtime|step avg|s it", ""),
    ("epoch", "", 0.95, r"^(\w+ )?epochs?$", ""),
    ("memory", "", 0.8, r"memory|mem|gb|mb", ""),
    ("step", "", 0.95, r"^(trainer )?(global )?steps?$|^(n )?(iteration|iter|update)s?$|^training iteration$"
     r"|^num updates$|(total )?timesteps( total)?$|total env interacts|^num (env|agent)? ?steps (sampled|trained)$",
     r"this|since"),
)  # fmt: skip
_COMPILED = tuple(
    (role, held, sure, re.compile(rf"\b(?:{must})\b"), re.compile(rf"\b(?:{never})\b") if never else None)
    for role, held, sure, must, never in _RULES
)

#: Words around ``loss`` that leave it the main loss.
_MAIN_LOSS = frozenset(
    {
        "loss", "losses", "train", "training", "trainer", "lm", "total", "nll", "step", "epoch", "mean", "avg",
        "average", "ce", "ctc", "cross", "entropy", "crossentropy", "objective", "trl", "running", "batch",
        "iter", "rollout",
    }
)  # fmt: skip
_PART_OF_LOSS = frozenset(
    {
        "aux", "auxiliary", "z", "reg", "regularization", "penalty", "moe", "balance", "balancing", "load", "bbox",
        "cls", "dfl", "box", "giou", "kpt", "icm", "curiosity", "unscaled",
    }
)  # fmt: skip


def split_name(name: str) -> list[str]:
    """Cut a channel name into lower-case words.

    >>> split_name("train/lmLoss_epoch"), split_name("AverageVVals")
    (['train', 'lm', 'loss', 'epoch'], ['average', 'v', 'vals'])
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
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
    words = split_name(_CONTAINERS.sub("", _CONTAINERS.sub("", name)))
    text = " ".join(words)
    held_out = not _HELD_OUT.isdisjoint(words) or bool(re.match(r"metrics .* [bmp]$", text))  # Ultralytics
    for role, held, sure, must, never in _COMPILED:
        if not must.search(text) or (never is not None and never.search(text)):
            continue
        if role == "loss?":
            return _loss(words, held_out)
        found = held if held_out and held else role
        if role in ("grad_norm", "param_norm", "update_norm") and len(words) > 4:
            return found, 0.5  # of one layer or one part, not of the model
        return (found, sure) if found else ("", 0.0)
    return "", 0.0


def _loss(words: list[str], held_out: bool) -> tuple[str, float]:
    """Tell the training loss, the held-out loss and parts of a loss apart."""
    known = _MAIN_LOSS | _HELD_OUT
    extra = [w for w in words if w not in known and not re.fullmatch(r"\d+|g\d+|\w{1,4}loss", w)]
    numbered = bool(re.search(r"loss \w+ \d+\b", " ".join(words)))
    part = numbered or not _PART_OF_LOSS.isdisjoint(extra)
    sure = 0.8 if "ce" in words and len(words) > 2 else 0.95  # in DETR the classification part, elsewhere the loss
    if held_out:
        return "val_loss", 0.5 if part or len(extra) > 1 else 0.8 if extra else sure
    if part:
        return "aux_loss", 0.8
    if not extra:
        return "loss", sure
    return ("loss", 0.5) if len(extra) == 1 else ("aux_loss", 0.5)
