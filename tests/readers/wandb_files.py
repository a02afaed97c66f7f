"""Write small ``.wandb`` files for tests, following the documented record layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trajscope.readers._wandb_framing import framed


def number(value: int) -> bytes:
    out = bytearray()
    value &= 2**64 - 1
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(field: int, content: bytes) -> bytes:
    return number(field << 3 | 2) + number(len(content)) + content


def item(key: str | tuple[str, ...], text: str, field: int = 1) -> bytes:
    name = message(1, key.encode()) if isinstance(key, str) else b"".join(message(2, k.encode()) for k in key)
    return message(field, name + message(16, text.encode()))


def history(row: Mapping[Any, Any], step: int | None = None, **texts: str) -> bytes:
    """A history record; ``texts`` are JSON texts as they stand."""
    items = [item(k, json.dumps(v)) for k, v in row.items()] + [item(k, v) for k, v in texts.items()]
    end = b"" if step is None else message(2, b"\x08" + number(step) if step else b"")
    return message(2, b"".join(items) + end)


def plain(n: int, first: int = 0, **more: Any) -> list[bytes]:
    """Rows ``loss = step / 10`` with a clock of one row a second."""
    return [history({"loss": s / 10, "_step": s, "_timestamp": 1.7e9 + s, **more}, s) for s in range(first, first + n)]


def exit_record(code: int = 0) -> bytes:
    return message(18, (b"\x08" + number(code)) if code else b"")


def log(records: list[bytes]) -> bytes:
    """The bytes of a file."""
    return framed(records)
