"""From a file to clean UTF-8 bytes: byte order marks, encodings, zero tails and holes.

The order of guesses is: a byte order mark, UTF-16 without one (every second byte zero), UTF-8, and line by line
Windows-1252 for the lines that are no UTF-8. What was done is a `Problem`; nothing is dropped but zero bytes.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from trajscope.history import Problem
from trajscope.readers._gzip import read_bytes

__all__ = ["clean_bytes", "head_text", "load_text", "wide_encoding"]

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
#: Control characters that no text log holds (it may hold tabs, line ends, escapes of a terminal).
_STRANGE = bytes(c for c in range(32) if c not in b"\t\n\r\x0b\x0c\x1b\b\a")

_ZEROS = re.compile(rb"\0+")


def load_text(path: Path, label: str, *, lines: bool = False) -> tuple[bytes, list[Problem]]:
    """Read a text file (perhaps a ``.gz``) as UTF-8 bytes without mark and zero bytes, with what had to be repaired.

    Parameters
    ----------
    path : Path
    label : str
        File name for problems.
    lines : bool, default False
        Whether a line that is cut may look whole (a number that lost digits): where a compressed file breaks off, the
        line in which it does is left out.

    Returns
    -------
    text : bytes
    problems : list of Problem
        Those of `clean_bytes` and of the decompression; ``half-line``.
    """
    raw, problems = read_bytes(path, label)
    data, repairs = clean_bytes(raw, label)
    if lines and problems and b"\n" in data and not data.endswith(b"\n"):
        data = data[: data.rindex(b"\n") + 1]
        sentence = "The line in which the compressed file breaks off was left out"
        repairs.append(Problem("half-line", "info", sentence, label, f"line {len(data.splitlines()) + 1}"))
    return data, [*problems, *repairs]


def clean_bytes(raw: bytes, label: str = "") -> tuple[bytes, list[Problem]]:
    """Repair the encoding of bytes that should be text.

    Parameters
    ----------
    raw : bytes
    label : str
        File name for problems.

    Returns
    -------
    text : bytes
        Valid UTF-8 without NUL.
    problems : list of Problem
        ``empty-file``, ``zero-tail``, ``zero-hole``, ``mixed-encoding``.

    Examples
    --------
    >>> clean_bytes(b"\\xff\\xfea\\x00")[0]
    b'a'
    >>> clean_bytes(b"gr\\xfcn")[0].decode()
    'grün'
    """
    problems: list[Problem] = []
    if not raw:
        return raw, [Problem("empty-file", "info", "The file is empty", label, count=0)]
    encoding = wide_encoding(raw)
    if encoding is not None:
        mark = next((b for b, _ in _BOMS if raw.startswith(b)), b"")
        unit = 4 if "32" in encoding else 2
        body = raw[len(mark) :]
        text = body[: len(body) // unit * unit].decode(encoding, errors="replace")
        raw = text.encode("utf-8", errors="replace")
    elif raw.startswith(codecs.BOM_UTF8):
        raw = raw[len(codecs.BOM_UTF8) :]
    if b"\0" in raw:
        size = len(raw)
        kept = raw.rstrip(b"\0")
        if len(kept) < size:
            place = f"byte {len(kept)}"
            problems.append(
                Problem(
                    "zero-tail",
                    "info",
                    f"The file ends in {size - len(kept)} zero bytes (a crash after space was reserved); ignored",
                    label,
                    place,
                    size - len(kept),
                )
            )
        holes = kept.count(b"\0")
        if holes:
            problems.append(
                Problem(
                    "zero-hole",
                    "warning",
                    f"{holes} zero bytes inside the file were taken out; what stood there is lost",
                    label,
                    f"byte {kept.index(bytes(1))}",
                    holes,
                )
            )
        raw = kept.replace(b"\0", b"")
    if not raw.isascii():
        raw = _as_utf8(raw, label, problems)
    return raw, problems


def wide_encoding(raw: bytes) -> str | None:
    """UTF-16 or UTF-32, by its mark or by the zero bytes of plain text."""
    for mark, name in _BOMS[1:]:
        if raw.startswith(mark):
            return name
    head = raw[:512]
    if len(head) >= 8 and not head.startswith(codecs.BOM_UTF8):
        for name, text, zero in (("utf-16-le", head[::2], head[1::2]), ("utf-16-be", head[1::2], head[::2])):
            if zero.count(0) > 0.9 * len(zero) and not text.count(0):
                return name
    return None


def _as_utf8(raw: bytes, label: str, problems: list[Problem]) -> bytes:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        pass
    else:
        return raw
    lines = raw.splitlines(keepends=True)
    first, count = 0, 0
    for i, line in enumerate(lines):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            first = first or i + 1
            count += 1
            lines[i] = line.decode("cp1252", errors="replace").encode("utf-8")
    problems.append(
        Problem(
            "mixed-encoding",
            "info",
            f"{count} lines are no UTF-8 and were read as Windows-1252",
            label,
            f"line {first}",
            count,
        )
    )
    return b"".join(lines)


def head_text(head: bytes) -> str:
    """The first bytes of a file as text, or an empty string where they are no text.

    >>> head_text(b"step,loss\\n0,1\\n")
    'step,loss\\n0,1\\n'
    >>> head_text(bytes(range(32)) * 4)
    ''
    """
    body, _ = clean_bytes(head)
    text = body.decode("utf-8", errors="replace")
    strange = len(body) - len(body.translate(None, _STRANGE)) + text.count("\ufffd")
    if wide_encoding(head) is None:
        strange += len(_ZEROS.findall(head.rstrip(b"\0")))  # a hole in a text is one, however long
    return "" if strange > 0.01 * len(text) + 1 else text
