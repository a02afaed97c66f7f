"""The plain part of YAML that trackers write beside their logs: settings, not documents.

Block mappings and lists, quoted and plain scalars, empty or one-line flow collections, block scalars (``|`` and ``>``),
comments. No anchors, tags, merge keys or several documents: a tag or an anchor is kept as text, and what cannot be
read leaves the rest alone. Nothing is ever constructed but dict, list, str, int, float, bool and None.
"""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["parse_yaml", "read_yaml"]

_INT = re.compile(r"[-+]?\d+$")
_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
_WORDS: dict[str, Any] = {
    "": None, "~": None, "null": None, "true": True, "false": False, "yes": True, "no": False, "on": True, "off": False,
    ".nan": float("nan"), ".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"),
}  # fmt: skip
_DEPTH = 50


def read_yaml(text: str) -> Any:
    """Read a settings file; what is no YAML of the plain kind comes back as None or is left out.

    >>> read_yaml("lr: 0.1\\nnet:\\n  layers: [64, 64]\\n  act: 'relu'\\ntags:\\n- a\\n- b\\n")
    {'lr': 0.1, 'net': {'layers': [64, 64], 'act': 'relu'}, 'tags': ['a', 'b']}
    """
    lines = [(len(raw) - len(raw.lstrip(" ")), raw.strip()) for raw in text.splitlines()]
    content = [k for k, (_, s) in enumerate(lines) if s and not s.startswith(("#", "---", "%"))]
    if not content:
        return None
    value, _ = _block(lines, content[0], lines[content[0]][0], 0)
    return value


def parse_yaml(text: str) -> dict[str, Any]:
    """The settings of a file as a mapping; empty where it holds none.

    >>> parse_yaml("- 1")
    {}
    """
    found = read_yaml(text)
    return {str(k): v for k, v in found.items()} if isinstance(found, dict) else {}


_Lines = list[tuple[int, str]]


def _blank(line: tuple[int, str]) -> bool:
    return not line[1] or line[1].startswith("#")


def _block(lines: _Lines, at: int, indent: int, depth: int) -> tuple[Any, int]:
    """The mapping, list or scalar that begins at line ``at`` and the line behind it."""
    text = lines[at][1]
    if text == "-" or text.startswith("- "):
        return _list(lines, at, indent, depth)
    if _key(text) is not None:
        return _mapping(lines, at, indent, depth)
    return _scalar(text), at + 1


def _mapping(lines: _Lines, at: int, indent: int, depth: int) -> tuple[dict[Any, Any], int]:
    out: dict[Any, Any] = {}
    while at < len(lines):
        if _blank(lines[at]):
            at += 1
            continue
        here, text = lines[at]
        if here < indent or (here == indent and text.startswith("- ")):
            break
        pair = _key(text)
        if here > indent or pair is None:
            at += 1  # a line that belongs nowhere
            continue
        key, rest = pair
        out[key], at = _value(lines, at, indent, rest, depth)
    return out, at


def _list(lines: _Lines, at: int, indent: int, depth: int) -> tuple[list[Any], int]:
    out: list[Any] = []
    while at < len(lines):
        if _blank(lines[at]):
            at += 1
            continue
        here, text = lines[at]
        if here != indent or not (text == "-" or text.startswith("- ")):
            if here > indent:
                at += 1
                continue
            break
        rest = text[1:].strip()
        if depth < _DEPTH and rest and (_key(rest) is not None or rest.startswith("- ")):
            # "- key: value" opens a mapping whose indent is where the key stands.
            inner = here + len(text) - len(rest)
            lines[at] = (inner, rest)
            value, at = _block(lines, at, inner, depth + 1)
        else:
            value, at = _value(lines, at, indent, rest, depth)
        out.append(value)
    return out, at


def _value(lines: _Lines, at: int, indent: int, rest: str, depth: int) -> tuple[Any, int]:
    """What stands behind a key or a dash."""
    if rest[:1] in ("|", ">"):
        return _text(lines, at, indent, rest)
    if rest and not rest.startswith("#"):
        return _scalar(rest), at + 1
    after = at + 1
    while after < len(lines) and _blank(lines[after]):
        after += 1
    if after >= len(lines) or depth >= _DEPTH:
        return None, after
    here, text = lines[after]
    dash = text == "-" or text.startswith("- ")
    if here > indent or (dash and here == indent and not lines[at][1].startswith("- ")):
        return _block(lines, after, here, depth + 1)
    return None, at + 1


def _text(lines: _Lines, at: int, indent: int, mark: str) -> tuple[str, int]:
    parts: list[str] = []
    at += 1
    while at < len(lines) and (lines[at][0] > indent or not lines[at][1]):
        parts.append(lines[at][1])
        at += 1
    while parts and not parts[-1]:
        parts.pop()
    return ("\n" if mark[0] == "|" else " ").join(parts), at


def _key(text: str) -> tuple[Any, str] | None:
    """Cut ``key: rest``; None where the line holds no key."""
    if text[:1] in ('"', "'"):
        close = text.find(text[0], 1)
        if close > 0 and text[close + 1 : close + 2] == ":":
            return text[1:close], text[close + 2 :].strip()
        return None
    if text[:1] in ("[", "{"):
        return None
    place = text.find(": ")
    if place < 0:
        if not text.endswith(":"):
            return None
        place = len(text) - 1
    key = text[:place].strip()
    return (int(key) if _INT.match(key) and len(key) < 19 else key), text[place + 1 :].strip()


def _scalar(text: str) -> Any:
    if text[:1] == "'":
        close = text.rfind("'")
        return text[1:close].replace("''", "'") if close > 0 else text
    if text[:1] == '"':
        close = text.rfind('"')
        try:
            return json.loads(text[: close + 1])
        except ValueError:
            return text.strip('"')
    if text[:1] in ("[", "{"):
        return _flow(text)
    comment = text.find(" #")
    if comment >= 0:
        text = text[:comment].strip()
    word = text.lower()
    if word in _WORDS:
        return _WORDS[word]
    if _INT.match(text) and len(text) < 400:
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    return text


def _flow(text: str) -> Any:
    """A collection on one line: JSON where it is JSON, else a flat list or mapping of scalars."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    inner = text[1:-1].strip()
    if text[-1:] not in "]}" or any(c in inner for c in "[]{}"):
        return text
    parts = [p.strip() for p in inner.split(",")] if inner else []
    if text[0] == "[":
        return [_scalar(p) for p in parts]
    pairs = [_key(p) for p in parts]
    return {k: _scalar(v) for k, v in (p for p in pairs if p is not None)}
