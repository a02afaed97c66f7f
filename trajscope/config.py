"""Settings: frozen, hashed, and with a stated origin for each value.

Precedence: command-line flag > environment (``TRAJSCOPE_<NAME>``) > the file given with ``--config`` >
``trajscope.toml`` in the working directory > default. An unknown key is an error that names the nearest one.

A file looks like this::

    alpha = 0.05
    performance = "eval/return:max"

    [roles]
    "my/odd name" = "grad_norm"

    [[rule]]
    title = "Gradient norm above our limit"
    role = "grad_norm"
    above = 50.0
    rows = 3
    result = "fail"
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trajscope.errors import ConfigError, nearest

__all__ = ["OwnRule", "Settings", "load_settings"]


#: Variables of ours that are no settings: where the recorded data lie, and whether a bug shows its traceback.
OTHER_VARIABLES = frozenset({"TRAJSCOPE_DATA", "TRAJSCOPE_DEBUG"})

PROFILES = ("full", "fast")


@dataclass(frozen=True)
class OwnRule:
    """A check of your own, ``[[rule]]`` in the settings file.

    Attributes
    ----------
    title : str
    channel, role : str
        What it looks at: a channel by name, or every channel with a role. One of the two.
    above, below : float, optional
        A row meets the rule where the value lies above or below this.
    ratio : float, optional
        A row meets the rule where the value is more than this many times the median of the hundred finite rows before
        it (at least five).
    rows : int
        Rows in a row that must meet it.
    result : {"fail", "watch", "info"}
        ``fail`` makes the run not healthy, ``watch`` asks for a closer look, ``info`` is only shown.
    axis : str
        Axis of perturbation that it would point to.
    """

    title: str
    channel: str = ""
    role: str = ""
    above: float | None = None
    below: float | None = None
    ratio: float | None = None
    rows: int = 1
    result: str = "watch"
    axis: str = ""

    def __post_init__(self) -> None:
        where = f"[[rule]] {self.title!r}"
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.name in ("above", "below", "ratio"):
                good = value is None or (isinstance(value, int | float) and not isinstance(value, bool))
                wanted = "a number"
            elif f.name == "rows":
                good, wanted = isinstance(value, int) and not isinstance(value, bool) and value >= 1, "1 or more"
            else:
                good, wanted = isinstance(value, str), "a string"
            if not good or value != value:
                raise ConfigError(f"{where}: {f.name} = {value!r}; expected {wanted}")
        if not self.title:
            raise ConfigError("[[rule]] without a title; expected title = '...'")
        if bool(self.channel) == bool(self.role):
            raise ConfigError(f"{where}: expected either channel or role")
        if sum(v is not None for v in (self.above, self.below, self.ratio)) != 1:
            raise ConfigError(f"{where}: expected one of above, below and ratio")
        if self.result not in ("fail", "watch", "info"):
            raise ConfigError(f"{where}: result = {self.result!r}. {nearest(self.result, ('fail', 'watch', 'info'))}")


@dataclass(frozen=True)
class Settings:
    """Everything that an audit can be told.

    Attributes
    ----------
    performance : str
        ``NAME`` or ``NAME:max`` or ``NAME:min``; empty: chosen by role.
    alpha : float
        Family-wise level of the change-point and spike tests over one run.
    drawdown : float
        Share of what was learned that must be lost to speak of a collapse (DEFINITIONS 5, swept 0.3 to 0.7 there).
    collapse_sd : float
        Robust standard deviations that the fall must reach as well.
    spike_sd : float
        Robust standard deviations from which a spike by itself is worth a look (healthy runs reach 6).
    lasting_sd : float
        Standard deviations of the evaluations before the first event by which the last tenth must lie below their level
        for the run to count as not recovered.
    persistence : int
        Evaluations in a row that must show it.
    min_rows : int
        Rows below which a run is never called healthy.
    material : float
        Share of the range covered so far by which a level must move the wrong way for a change to be worth a look.
    tail : float
        Share of the rows that counts as the end of the run ("persistently").
    seed : int
        Seed of everything random.
    profile : {"full", "fast"}
        ``fast`` leaves out what needs surrogates or a model (the meta-state), for scoring in bulk.
    roles : mapping of str to str
        Roles of channels that override the guess from the name.
    rule : tuple of OwnRule
        Checks of your own; ``[[rule]]`` tables in a file.
    """

    performance: str = ""
    alpha: float = 0.05
    drawdown: float = 0.5
    collapse_sd: float = 7.0
    spike_sd: float = 8.0
    lasting_sd: float = 2.0
    persistence: int = 3
    min_rows: int = 50
    material: float = 0.05
    tail: float = 0.1
    seed: int = 0
    profile: str = "full"
    roles: Mapping[str, str] = field(default_factory=dict)
    rule: tuple[OwnRule, ...] = ()

    def __post_init__(self) -> None:
        bounds = {
            "alpha": (0.0, 0.5),
            "drawdown": (0.0, 1.0),
            "collapse_sd": (0.0, float("inf")),
            "spike_sd": (0.0, float("inf")),
            "lasting_sd": (0.0, float("inf")),
            "persistence": (0, float("inf")),
            "min_rows": (0, float("inf")),
            "material": (0.0, 1.0),
            "tail": (0.0, 0.5),
        }
        if self.profile not in PROFILES:
            raise ConfigError(f"setting profile = {self.profile!r}. {nearest(str(self.profile), PROFILES)}")
        if self.seed < 0:
            raise ConfigError(f"setting seed = {self.seed!r} is out of range; expected 0 or more")
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not low < value <= high:
                raise ConfigError(
                    f"setting {name} = {value!r} is out of range; expected more than {low:g}, at most {high:g}"
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name."""
        plain = {**dataclasses.asdict(self), "roles": dict(self.roles)}
        return {**plain, "rule": [dataclasses.asdict(r) for r in self.rule]}

    @property
    def hash(self) -> str:
        """First 12 hexadecimal digits of the SHA-256 of the settings; a table row is valid for one hash.

        >>> Settings().hash == Settings(alpha=0.01).hash
        False
        """
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def load_settings(
    flags: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: str | Path = ".",
) -> tuple[Settings, dict[str, str]]:
    """Settings from all places, and where each value came from.

    Parameters
    ----------
    flags : mapping, optional
        Values given on the command line; None values do not count.
    config : path, optional
        A TOML file that must exist.
    environ : mapping, optional
        Environment; default the process's.
    folder : path
        Where ``trajscope.toml`` is looked for.

    Returns
    -------
    settings : Settings
    origins : dict of str to str
        For each setting ``"default"``, a file name, ``"environment"`` or ``"flag"``.

    Raises
    ------
    ConfigError
        For an unknown key, a value of the wrong type, or a file that is no TOML.
    """
    names = {f.name: f for f in dataclasses.fields(Settings)}
    values: dict[str, Any] = {}
    origins = dict.fromkeys(names, "default")

    def put(name: str, value: Any, origin: str) -> None:
        if name not in names:
            raise ConfigError(f"{origin}: setting {name!r} is unknown. {nearest(name, names)}")
        values[name] = _typed(name, value, origin)
        origins[name] = origin

    local = Path(folder) / "trajscope.toml"
    files = [local] if local.is_file() else []
    if config is not None:
        files.append(Path(config))
    for file in files:
        for name, value in _toml(file).items():
            put(name, value, str(file))
    for variable, text in (os.environ if environ is None else environ).items():
        if variable.startswith("TRAJSCOPE_") and variable not in OTHER_VARIABLES:
            put(variable.removeprefix("TRAJSCOPE_").lower(), text, f"environment ({variable})")
    for name, value in (flags or {}).items():
        if value is not None and value != {}:
            put(name, {**values.get("roles", {}), **value} if name == "roles" else value, "flag")
    return Settings(**values), origins


def _toml(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as problem:
        raise ConfigError(f"{file}: cannot be opened ({problem.strerror})") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{file}: not valid TOML ({problem})") from problem


def _typed(name: str, value: Any, origin: str) -> Any:
    default = getattr(Settings(), name)
    if name == "rule":
        return _rules(value, origin)
    try:
        if isinstance(default, dict):
            if isinstance(value, str):
                value = dict(pair.split("=", 1) for pair in value.split(",") if pair)
            return {str(k): str(v) for k, v in dict(value).items()}
        if isinstance(default, int) and not isinstance(value, bool) and float(value) == int(float(value)):
            return int(float(value))
        if isinstance(default, float) and not isinstance(value, bool):
            return float(value)
        if isinstance(default, str) and isinstance(value, str):
            return value
    except (TypeError, ValueError, OverflowError):
        pass
    raise ConfigError(f"{origin}: setting {name} = {value!r}, expected {_TOML_WORDS[type(default)]}")


def _rules(value: Any, origin: str) -> tuple[OwnRule, ...]:
    """Tables ``[[rule]]`` as rules."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ConfigError(f"{origin}: setting rule is given as [[rule]] tables in a settings file")
    names = [f.name for f in dataclasses.fields(OwnRule)]
    for item in value:
        for key in item:
            if key not in names:
                raise ConfigError(f"{origin}: [[rule]] has the key {key!r}. {nearest(key, names)}")
    try:
        return tuple(OwnRule(**{"title": "", **item}) for item in value)
    except ConfigError as problem:
        raise ConfigError(f"{origin}: {problem}") from problem


_TOML_WORDS = {dict: "a table of strings", int: "a whole number", float: "a number", str: "a string"}
