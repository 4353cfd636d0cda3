"""Python values as the bytes of a Metal type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

_VECTOR = re.compile(r"(?P<scalar>[a-z_0-9]*[a-z_]|u?int(?:8|16|32|64)_t)(?P<width>[234])")
_SCALARS: dict[str, Any] = {
    "bool": np.bool_,
    "char": np.int8,
    "int8_t": np.int8,
    "uchar": np.uint8,
    "uint8_t": np.uint8,
    "short": np.int16,
    "int16_t": np.int16,
    "ushort": np.uint16,
    "uint16_t": np.uint16,
    "int": np.int32,
    "int32_t": np.int32,
    "uint": np.uint32,
    "uint32_t": np.uint32,
    "unsigned": np.uint32,
    "unsigned int": np.uint32,
    "long": np.int64,
    "int64_t": np.int64,
    "ulong": np.uint64,
    "uint64_t": np.uint64,
    "size_t": np.uint64,
    "half": np.float16,
    "float": np.float32,
}


def pack(type_name: str, value: Any) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    """The bytes of the value in the type, None if the type is not known here.

    Raises:
        ValueError: the type does not have the value.
    """
    name = type_name.replace("metal::", "").replace("& ", "").strip("& ")
    if name in ("bfloat", "bfloat16_t"):
        return _bfloat(value)
    vector = _VECTOR.fullmatch(name)
    if name not in _SCALARS and vector is not None and vector["scalar"] in _SCALARS:
        return _vector(vector["scalar"], int(vector["width"]), value)
    if name not in _SCALARS:
        return None
    return _bytes_of(_scalar(name, value))


def _scalar(name: str, value: Any) -> Any:
    dtype = np.dtype(_SCALARS[name])
    if dtype.kind in "iu":
        if int(value) != value or not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
            raise ValueError(f"{value!r} is no value of {name}")
        value = int(value)
    return np.array([value]).astype(dtype)


def _vector(scalar: str, width: int, value: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if not isinstance(value, Sequence | np.ndarray) or len(value) != width:
        raise ValueError(f"{scalar}{width} takes {width} values, got {value!r}")
    # A vector of three has the size and alignment of four (Metal specification, table 2.3).
    padded = np.zeros(4 if width == 3 else width, _SCALARS[scalar])
    padded[:width] = [_scalar(scalar, element)[0] for element in value]
    return _bytes_of(padded)


def _bfloat(value: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    bits = int(np.array([value], np.float32).view(np.uint32)[0])
    if np.isnan(np.float32(value)):
        rounded = (bits >> 16) | 0x40
    else:
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return _bytes_of(np.array([rounded], np.uint16))


def _bytes_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    copied: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(array.tobytes(), np.uint8).copy()
    return copied
