"""Read the container of a GGUF file: metadata, tensor table, and each tensor's raw bytes.

MLX loads GGUF too, but it opens the file for writing and rounds the values of other block formats
to float16 without a word. Here every read is checked against the file's size, an unsupported block
format is refused by name, and all failures are a ``ValueError``.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The ids are those of the file format. A block is (values, bytes); types without one are here to be
# named in messages.
_TYPES: dict[int, tuple[str, tuple[int, int] | None]] = {
    0: ("F32", (1, 4)),
    1: ("F16", (1, 2)),
    2: ("Q4_0", (32, 18)),
    3: ("Q4_1", (32, 20)),
    6: ("Q5_0", (32, 22)),
    7: ("Q5_1", (32, 24)),
    8: ("Q8_0", (32, 34)),
    9: ("Q8_1", None),
    10: ("Q2_K", (256, 84)),
    11: ("Q3_K", (256, 110)),
    12: ("Q4_K", (256, 144)),
    13: ("Q5_K", (256, 176)),
    14: ("Q6_K", (256, 210)),
    15: ("Q8_K", None),
    16: ("IQ2_XXS", None),
    17: ("IQ2_XS", None),
    18: ("IQ3_XXS", None),
    19: ("IQ1_S", None),
    20: ("IQ4_NL", (32, 18)),
    21: ("IQ3_S", None),
    22: ("IQ2_S", None),
    23: ("IQ4_XS", None),
    24: ("I8", None),
    25: ("I16", None),
    26: ("I32", None),
    27: ("I64", None),
    28: ("F64", None),
    29: ("IQ1_M", None),
    30: ("BF16", (1, 2)),
    34: ("TQ1_0", (256, 54)),
    35: ("TQ2_0", (256, 66)),
    39: ("MXFP4", None),
}
SUPPORTED_TYPES = tuple(name for name, block in _TYPES.values() if block)

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class Tensor:
    """One row of the tensor table.

    Attributes:
        name: The tensor's name in the file.
        type: The block format's name, one of ``SUPPORTED_TYPES``.
        shape: The shape as NumPy and MLX write it (the file stores it reversed).
        start: Where the bytes begin in the file.
        n_bytes: How many bytes there are.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    start: int
    n_bytes: int


class GGUFFile:
    """An open GGUF file, usable as a context manager.

    Attributes:
        path: The file.
        metadata: Key to value; arrays are lists.
        tensors: Name to row of the tensor table, in file order.
    """

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self._data = data
        cursor = _Cursor(data)
        n_tensors, n_pairs = _read_counts(cursor)
        self.metadata = _read_metadata(cursor, n_pairs)
        self.tensors = _read_tensor_table(cursor, n_tensors, self._alignment(), len(data))

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(
                f"[gguf] general.alignment must be a positive integer, got {alignment!r}."
            )
        return alignment

    def raw(self, name: str) -> bytes:
        """Return a copy of one tensor's bytes."""
        tensor = self.tensors[name]
        return self._data[tensor.start : tensor.start + tensor.n_bytes]

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._data.close()


def open_gguf(path: Path) -> GGUFFile:
    """Open a GGUF file and check all of its header.

    Args:
        path: The file.

    Returns:
        The open file; close it by leaving its ``with`` block.

    Raises:
        ValueError: The file is not a GGUF file, is damaged or truncated, or holds tensors of an
            unsupported type.
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(
                f"[gguf] path must name a GGUF file, got {str(path)!r} (without the mark 'GGUF')."
            )
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return GGUFFile(path, data)
    except BaseException:
        data.close()
        raise


class _Cursor:
    """Reads little-endian values one after the other and refuses to pass the end of the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0

    def take(self, n_bytes: int) -> bytes:
        end = self.position + n_bytes
        if end > len(self.data):
            raise ValueError(
                "[gguf] file must be complete, "
                f"got one that ends inside its header, after {len(self.data)} bytes."
            )
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        return layout.unpack(self.take(layout.size))[0]

    def string(self) -> str:
        text = self.take(self.scalar("Q"))
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"[gguf] strings must be UTF-8, got {text[:40]!r}.") from None

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        raise ValueError(f"[gguf] metadata types must be 0 to 12, got {kind}.")

    def array(self) -> list[Any]:
        kind, length = self.scalar("I"), self.scalar("Q")
        if kind in _SCALARS:
            code = _SCALARS[kind]
            return list(
                struct.unpack(f"<{length}{code}", self.take(length * struct.calcsize("<" + code)))
            )
        if kind != _STRING:
            raise ValueError(
                f"[gguf] metadata arrays must hold numbers or strings, got elements of type {kind}."
            )
        read: Callable[[], str] = self.string
        return [read() for _ in range(length)]


def _read_counts(cursor: _Cursor) -> tuple[int, int]:
    cursor.take(4)
    version = cursor.scalar("I")
    if version not in (2, 3):
        big_endian = " (a big-endian file)" if version in (2 << 24, 3 << 24) else ""
        raise ValueError(f"[gguf] version must be 2 or 3, got {version}{big_endian}.")
    return cursor.scalar("Q"), cursor.scalar("Q")


def _read_metadata(cursor: _Cursor, n_pairs: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(n_pairs):
        key = cursor.string()
        if key in metadata:
            raise ValueError(f"[gguf] metadata keys must be unique, got {key!r} twice.")
        metadata[key] = cursor.value(cursor.scalar("I"))
    return metadata


def _read_tensor_table(
    cursor: _Cursor, n_tensors: int, alignment: int, size_bytes: int
) -> dict[str, Tensor]:
    rows = []
    for _ in range(n_tensors):
        name = cursor.string()
        n_dimensions = cursor.scalar("I")
        if n_dimensions > _MAX_DIMENSIONS:
            raise ValueError(
                f"[gguf] tensors must have at most {_MAX_DIMENSIONS} dimensions, "
                f"got {n_dimensions} for {name!r}."
            )
        shape = tuple(cursor.scalar("Q") for _ in range(n_dimensions))[::-1]
        rows.append((name, shape, cursor.scalar("I"), cursor.scalar("Q")))
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    for name, shape, kind, offset in rows:
        if name in tensors:
            raise ValueError(f"[gguf] tensor names must be unique, got {name!r} twice.")
        tensors[name] = _place(name, shape, kind, data_start + offset, size_bytes)
    return tensors


def _place(name: str, shape: tuple[int, ...], kind: int, start: int, size_bytes: int) -> Tensor:
    type_name, block = _TYPES.get(kind, (f"number {kind}", None))
    if block is None:
        raise ValueError(
            f"[gguf] tensor types must be one of {', '.join(SUPPORTED_TYPES)}, "
            f"got {type_name} for {name!r}."
        )
    values, block_bytes = block
    row = shape[-1] if shape else 1
    if row % values:
        raise ValueError(
            f"[gguf] rows of a {type_name} tensor must be a multiple of {values}, "
            f"got {row} for {name!r}."
        )
    n_bytes = math.prod(shape) // values * block_bytes
    if start + n_bytes > size_bytes:
        raise ValueError(
            f"[gguf] file must be complete, "
            f"got {size_bytes} bytes where {name!r} ends at byte {start + n_bytes}."
        )
    return Tensor(name, type_name, shape, start, n_bytes)
