"""A window that moves over an event file, plain or gzip, and never holds much more than one record."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["GZIP_MAGIC", "Window"]

GZIP_MAGIC = b"\x1f\x8b"
#: Bytes read at a time.
CHUNK = 1 << 20
#: A compressed file may unfold to this many bytes, or to `MAX_RATIO` times its size where that is more. Event files
#: of real runs shrink 3 to 30 times.
MAX_UNFOLDED = 1 << 28
MAX_RATIO = 64


class Window:
    """The stretch ``data[pos:end]`` of a file, which starts at byte ``base + pos``.

    Attributes
    ----------
    data : ndarray of uint8
    base, end : int
        Offset of ``data[0]`` in the (unfolded) file, and how much of ``data`` is filled.
    exhausted : bool
        True once the file has no more to give.
    trouble : str
        Why a compressed file ended early (``"damaged"``, ``"truncated"``, ``"limit"``); empty otherwise.
    """

    def __init__(self, path: Path) -> None:
        self._stream = path.open("rb")
        self.size = path.stat().st_size
        self.compressed = self._stream.read(2) == GZIP_MAGIC
        self._stream.seek(0)
        self._inflate = zlib.decompressobj(31) if self.compressed else None
        self._limit = max(MAX_UNFOLDED, MAX_RATIO * self.size)
        self.data: NDArray[np.uint8] = np.zeros(CHUNK, dtype=np.uint8)
        self.base = self.end = 0
        self.exhausted = False
        self.trouble = ""

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def more(self, keep: int, wanted: int) -> bool:
        """Drop what lies before ``data[keep]`` (it becomes ``data[0]``) and read on.

        Parameters
        ----------
        keep : int
        wanted : int
            How many bytes from there on are needed; it is tried to hold at least that many.

        Returns
        -------
        bool
            Whether anything was read.
        """
        held = self.end - keep
        room = max(CHUNK, wanted)
        if room > self.data.size:
            grown = np.zeros(room, dtype=np.uint8)
            grown[:held] = self.data[keep : self.end]
            self.data = grown
        else:
            self.data[:held] = self.data[keep : self.end].copy()
        self.base += keep
        self.end = held
        while self.end < self.data.size and not self.exhausted:
            if self._inflate is None:
                count = self._stream.readinto(self.data.data[self.end :])
            else:
                piece = self._unfold(self._inflate, self.data.size - self.end)
                count = len(piece)
                self.data[self.end : self.end + count] = np.frombuffer(piece, dtype=np.uint8)
            self.exhausted = not count
            self.end += count
        return self.end > held

    def skip_to(self, pos: int) -> None:
        """Continue at ``data[pos]``, which may lie beyond the window, without holding what is between."""
        if pos <= self.end or self._inflate is not None:
            while pos > self.end and not self.exhausted:
                pos -= self.end
                self.more(self.end, 0)
            self.more(min(pos, self.end), 0)
            return
        self._stream.seek(self.base + pos)
        self.base += pos
        self.end = 0
        self.more(0, 0)

    def _unfold(self, inflate: zlib._Decompress, size: int) -> bytes:
        """Up to ``size`` more bytes of a compressed file; none at its end."""
        while True:
            if self.base + self.end > self._limit:
                self.trouble = "limit"
                return b""
            pending = inflate.unconsumed_tail
            if inflate.eof:
                # Members of a gzip file follow each other.
                pending = inflate.unused_data or self._stream.read(CHUNK)
                if not pending.strip(b"\0"):
                    return b""
                inflate = self._inflate = zlib.decompressobj(31)
            try:
                piece = inflate.decompress(pending or self._stream.read(CHUNK), min(size, CHUNK))
            except zlib.error:
                self.trouble = "damaged"
                return b""
            if piece:
                return piece
            if not inflate.eof and not inflate.unconsumed_tail:
                here = self._stream.tell()
                if not self._stream.read(1):
                    self.trouble = "truncated"
                    return b""
                self._stream.seek(here)
