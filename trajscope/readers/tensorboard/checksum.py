"""CRC-32C inside compiled code: the processor's own instruction where the compiler may use it, tables elsewhere.

SSE 4.2 computes this very polynomial (Intel 64 and IA-32 Architectures Software Developer's Manual, CRC32), eight bytes
an instruction. Which of the two is compiled depends on the features that numba compiles for, and these are part of the
key under which it caches, so that a cached function never meets a processor that lacks the instruction.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, njit, types
from numba.core.registry import cpu_target

__all__ = ["HARDWARE", "by_instruction", "by_tables", "eight_bytes", "masked_crc"]

_intrinsic: Any = extending.intrinsic

_MASK_DELTA = 0xA282EAD8


def _has_instruction() -> bool:
    """Whether the code that numba generates here may hold the instruction (and bytes are in its order)."""
    try:
        triple, _, features = cpu_target.target_context.codegen().magic_tuple()
        return sys.byteorder == "little" and triple.startswith("x86_64") and "+sse4.2" in features.split(",")
    except Exception:  # a future numba that tells it otherwise: tables serve everywhere
        return False


HARDWARE = _has_instruction()


def _instruction(name: str, bits: int, data_bits: int) -> Any:
    """The instruction as a function of state and data."""

    @_intrinsic
    def crc(context: Any, state: Any, data: Any) -> Any:
        integers: dict[int, Any] = {8: types.uint8, 32: types.uint32, 64: types.uint64}

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(ir.IntType(bits), [ir.IntType(bits), ir.IntType(data_bits)])
            found = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
            return builder.call(found, arguments)

        return integers[bits](integers[bits], integers[data_bits]), generate

    return crc


_crc_of_eight = _instruction("llvm.x86.sse42.crc32.64.64", 64, 64)
_crc_of_one = _instruction("llvm.x86.sse42.crc32.32.8", 32, 8)


@_intrinsic
def eight_bytes(context: Any, array: Any, start: Any) -> Any:
    """Eight bytes of a contiguous array of bytes as a number in the processor's order; the caller guards the end."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
        loaded = builder.load(place)
        loaded.align = 1
        return loaded

    return types.uint64(array, types.int64), generate


@njit(cache=True)
def _masked(crc: Any) -> Any:
    """The form in which TFRecord stores a state."""
    crc ^= np.uint64(0xFFFFFFFF)
    turned = (crc >> np.uint64(15)) | (crc << np.uint64(17))
    return (turned + np.uint64(_MASK_DELTA)) & np.uint64(0xFFFFFFFF)


@njit(cache=True)
def by_tables(buf: Any, start: int, length: int, tables: Any) -> Any:
    """Masked CRC-32C of ``buf[start : start + length]``, by slicing-by-8 (Kounavis and Berry 2008)."""
    crc = np.uint64(0xFFFFFFFF)
    low = np.uint64(0xFF)
    i = start
    stop = start + (length & ~7)
    while i < stop:
        crc = np.uint64(
            tables[7, (crc ^ buf[i]) & low]
            ^ tables[6, ((crc >> np.uint64(8)) ^ buf[i + 1]) & low]
            ^ tables[5, ((crc >> np.uint64(16)) ^ buf[i + 2]) & low]
            ^ tables[4, ((crc >> np.uint64(24)) ^ buf[i + 3]) & low]
            ^ tables[3, buf[i + 4]]
            ^ tables[2, buf[i + 5]]
            ^ tables[1, buf[i + 6]]
            ^ tables[0, buf[i + 7]]
        )
        i += 8
    while i < start + length:
        crc = np.uint64(tables[0, (crc ^ buf[i]) & low]) ^ (crc >> np.uint64(8))
        i += 1
    return _masked(crc)


@njit(cache=True)
def by_instruction(buf: Any, start: int, length: int, tables: Any) -> Any:
    """`by_tables` by the processor; ``tables`` is not looked at."""
    crc = np.uint64(0xFFFFFFFF)
    i = start
    stop = start + (length & ~7)
    while i < stop:
        crc = _crc_of_eight(crc, eight_bytes(buf, i))
        i += 8
    short = np.uint32(crc)
    while i < start + length:
        short = _crc_of_one(short, buf[i])
        i += 1
    return _masked(np.uint64(short))


masked_crc = by_instruction if HARDWARE else by_tables
