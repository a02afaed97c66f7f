"""One line of a text log: what was logged at which step.

A line is read in three moves. Its *prefix* (rank, time, level, logger name) is cut off; a time there is the wall
time. Its *step* is found: ``step:919/6000``, ``iteration 10/ 500 |``, ``[step=10/1000,epoch=0]``, ``Epoch(train)
[3][2/6]``, ``iter 10:``. Its *pairs* are what is left in one of the forms ``name=value``, ``name: value``, or,
between bars or commas, ``name value``. Values may have thousands separators and units glued on; a value that is no
number (``eta: 2:04:44``) is no pair.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from trajscope.readers._cells import parse_number

__all__ = ["Line", "read_line"]

_TIME = r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_PREFIX = re.compile(
    rf"""\s*(?:
        (?P<rank>(?:\[?(?:default|rank|node\d*[-.]?gpu|worker)?\s?\d{{1,5}}\]?:(?=\s)))  # "7: ", "[default3]: "
      | \[?(?P<time>{_TIME})\]?(?:\s?Z)?
      | \[?(?:INFO|DEBUG|WARNING|NOTICE|info)\]?(?=[\s:|\-])
      | [-|:](?=\s)
    )""",
    re.VERBOSE,
)
#: After a time: the name of a logger with its line, or of a host with its rank.
_LOGGER = re.compile(r"\s*(?:[\w\-.]+:\d+|[A-Za-z_]\w*(?:\.\w+)+|mmengine|mmdet|mmcls|mmseg|mmpose)(?=\s|$)")
_WORDS = r"(?:global[_ ]?step|training[_ ]?step|train[_ ]?step|step|iteration|iter|update|batch|it|s)"
_STEP = re.compile(
    rf"(?i)(?<![\w./])(?P<name>{_WORDS}|epoch)\s*[:=#]?\s*\[?\s*(?P<at>\d[\d,]*)(?:\s*/\s*(?P<of>\d[\d,]*))?(?![\w.%])"
)
_MM = re.compile(
    r"\b(?:Epoch|Iter):?\s*(?:\((?P<mode>\w+)\))?:?\s*\[\s*(?P<a>\d+)(?:/\d+)?\]\s*"
    r"(?:\[\s*(?P<b>\d+)\s*/\s*(?P<of>\d+)\])?"
)
#: A position inside an epoch: ``Train Epoch: 1 [640/60000 (1%)]``, ``Epoch 1: [10/50]``.
_INSIDE = re.compile(
    r"(?i)\bepoch\s*[:#]?\s*(?P<a>\d+)(?:/\d+)?\s*:?,?\s*\[\s*(?P<b>\d+)\s*/\s*(?P<of>\d+)(?:\s*\(\s*[\d.]+\s?%\))?\s*\]:?"
)
_MM_ITER = re.compile(r"\bIter\s*(?:\((?P<mode>\w+)\))?\s*\[\s*(?P<at>\d+)\s*/\s*(?P<of>\d+)\]")
_VALUE = (
    r"(?P<value>[+-]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:\s?%|[A-Za-zµ]{1,3}(?:/[a-z]{1,3})?)?"
    r"|[+-]?(?:nan|inf(?:inity)?)(?:ms|s|%)?|tensor\([^()]{1,40}\))(?=$|[\s,;|)\]}(])"
)
_KEY = r"(?P<key>[A-Za-z_][\w./@%#-]*(?:[ ](?:\(?[A-Za-z_(][\w./@%#()-]*)){0,6})"
_PAIR = re.compile(rf"(?<![\w./])['\"]?{_KEY}['\"]?(?:\s?=\s?|\s*:\s*)(?i:{_VALUE})")
_SPACED = re.compile(rf"(?i)\A\s*{_KEY}\s+{_VALUE}\s*(?:\(.*\))?\s*\Z")
_RATE = re.compile(r"(?i)\A\s*(?P<value>[\d.,]+)\s*(?P<key>ms|tok/s|it/s|samples/s|s/it)\s*\Z")
_BARE_LOSS = re.compile(r"(?i)\s*(?:val|train|test) loss\s")
_VALIDATION = re.compile(r"(?i)\bvalidation (?:loss|results?) at (?:iteration|step) (?P<at>\d+)")
_CODE = re.compile(
    r"""\A\s*(?:#|//|def |class |import |from |return |if |for |while |print|assert |with |elif |raise |@|\"\"\"|>>>)"""
)
_LONGEST = 4000
#: Colours and other orders to a terminal.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: A line without a digit may say a number all the same.
_NUMBER = re.compile(r"(?i)\d|\b(?:nan|inf(?:inity)?)\b")
_STEP_PAIRS = ("step", "global_step", "iteration", "iter", "epoch")
#: A progress bar: `` 50%|#####     | 50/100 [00:01<00:01, ``.
_BAR = re.compile(r"\d+%\|[^|]*\|\s*(?P<at>\d+)/(?P<of>\d+)\s*\[[^,\]]*,?")


@dataclass(slots=True)
class Line:
    """What one line says.

    Attributes
    ----------
    step : dict of str to float
        Step-like numbers (``step``, ``iteration``, ``epoch``) by their names in the line.
    pairs : dict of str to str
        Names and values as text; the values are numbers (`trajscope.readers._cells.parse_number`).
    time : str
        ISO time in the prefix, empty where there is none.
    rank : str
        Rank in the prefix, empty where there is none.
    mode : str
        ``val`` or ``test`` on validation lines of MMEngine and Megatron, else empty.
    indent : bool
        True where the line is indented and has no prefix: it belongs to the line above.
    of : float
        Total of the finest counter (``6`` in ``[131][2/6]``), 0 where unknown.
    """

    step: dict[str, float] = field(default_factory=dict)
    pairs: dict[str, str] = field(default_factory=dict)
    time: str = ""
    rank: str = ""
    mode: str = ""
    indent: bool = False
    of: float = 0.0


def read_line(text: str) -> Line | None:
    """Read one line; None where it holds neither a step nor a pair.

    Parameters
    ----------
    text : str

    Returns
    -------
    Line or None

    Examples
    --------
    >>> line = read_line("step:919/6000 val_loss:4.3 train_time:285ms step_avg:nanms")
    >>> line.step, line.pairs
    ({'step': 919.0}, {'val_loss': '4.3', 'train_time': '285ms', 'step_avg': 'nanms'})
    >>> read_line("iter 10: loss 4.2, time 100.00ms").pairs
    {'loss': '4.2', 'time': '100.00ms'}
    >>> read_line("    train/loss=nan").pairs
    {'train/loss': 'nan'}
    >>> read_line("import torch") is None
    True
    """
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if len(text) > _LONGEST or _CODE.match(text) or not _NUMBER.search(text):
        return None
    line = Line()
    body = _cut_prefix(text, line)
    line.indent = text[:1] in " \t" and not line.time and not line.rank
    rest = _find_step(body, line)
    _find_pairs(rest, line)
    for name in _STEP_PAIRS:  # a dictionary as the Hugging Face Trainer prints it: {'loss': 0.5, 'epoch': 0.01}
        if name in line.pairs and name not in line.step:
            value = parse_number(line.pairs.pop(name))[0]
            if value is not None and math.isfinite(value):
                line.step[name] = float(value)
    return line if line.step or line.pairs else None


def _cut_prefix(text: str, line: Line) -> str:
    at = 0
    for _ in range(8):
        found = _PREFIX.match(text, at)
        if found is None:
            logger = _LOGGER.match(text, at) if line.time else None
            if logger is None:
                break
            at = logger.end()
            continue
        if found["time"]:
            line.time = found["time"]
        if found["rank"]:
            line.rank = re.sub(r"\D", "", found["rank"])
        at = found.end()
    return text[at:]


def _find_step(body: str, line: Line) -> str:
    """Take the step-like numbers out of the line; what is left may hold pairs."""
    special = _MM_ITER.search(body)
    if special:
        line.step["iter"] = float(special["at"])
        line.mode = _held_out(special["mode"])
        return body[special.end() :]
    special = _MM.search(body)
    if special and (special["b"] or special["mode"]):
        line.step["epoch"] = float(special["a"])
        if special["b"]:
            line.step["iter"] = float(special["b"])
            line.of = float(special["of"])
        line.mode = _held_out(special["mode"])
        return body[special.end() :]
    special = _INSIDE.search(body)
    if special:
        line.step = {"epoch": float(special["a"]), "iter": float(special["b"])}
        line.of = float(special["of"])
        return body[special.end() :]
    special = _VALIDATION.search(body)
    if special:
        line.step["iteration"] = float(special["at"])
        line.mode = "val"
        return body[special.end() :]
    bar = _BAR.search(body)
    if bar:
        line.step["iter"] = float(bar["at"])
        body = f"{body[: bar.start()]} , {body[bar.end() :]}"
    rest = body
    for found in _STEP.finditer(body):
        name = re.sub(r"\s+", "_", found["name"].lower())
        if name in line.step or (name in ("s", "it") and found.start() > 2):
            continue
        number = float(found["at"].replace(",", ""))
        line.step[name] = number
        line.of = float((found["of"] or "0").replace(",", "")) or line.of
        rest = rest.replace(found[0], " | " if "|" in body else " , ", 1)
    return rest


def _held_out(mode: str | None) -> str:
    return mode if mode in ("val", "test") else ""


def _find_pairs(rest: str, line: Line) -> None:
    for found in _PAIR.finditer(rest):
        _add(line, found["key"], found["value"])
    if "|" not in rest and (line.pairs or (not line.step and not _BARE_LOSS.match(rest))):
        return
    for part in re.split(r"\||\t|[,;](?!\d{3}\b)|(?<=\S) - |:\s", rest):
        spaced = _SPACED.match(part.lstrip(" \t[](){}"))
        if spaced:
            _add(line, spaced["key"], spaced["value"])
            continue
        rate = _RATE.match(part)
        if rate:
            _add(line, {"ms": "step_time_ms", "s/it": "step_time"}.get(rate["key"], rate["key"]), rate["value"])


def _add(line: Line, key: str, value: str) -> None:
    key = key.strip(" -#")
    if key and key not in line.pairs and parse_number(value)[0] is not None:
        line.pairs[key] = value
