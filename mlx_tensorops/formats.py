"""The block formats that the ops take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlx_tensorops import _ext

OPS = ("quantize", "dequantize", "quantized_matmul")
BACKENDS = ("cpu", "metal", "cuda")


@dataclass(frozen=True)
class FormatInfo:
    """One mode.

    Attributes:
        mode: Its name.
        bits: Bits of a code, by default in mode ``"affine"``; 0 where codes lie inside blocks.
        block: Values that are stored together.
        block_bytes: Bytes of ``w`` that they take.
        dtype: Of ``w``, ``"uint32"`` or ``"uint8"``.
        scales: What scales are: ``"float"``, ``"e8m0"``, ``"e4m3"``, or ``"inside"`` the blocks.
        third: A further array: ``"biases"``, ``"global_scale"`` or ``""``.
        group_size: (rows, columns) of values that share a scale, by default; ``None`` for all.
        ops: The ops that take the mode, each with the backends that have kernels of ours.
    """

    mode: str
    bits: int
    block: int
    block_bytes: int
    dtype: str
    scales: str
    third: str
    group_size: tuple[int | None, int | None]
    ops: Mapping[str, tuple[str, ...]]

    @property
    def bits_per_value(self) -> float:
        """What ``w`` takes of memory, without scales in an array of their own."""
        return 8 * self.block_bytes / self.block


def formats() -> dict[str, FormatInfo]:
    """List the modes that ``dequantize``, ``quantized_matmul`` and partly ``quantize`` take.

    Those of ``register_format`` are among them.

    Returns:
        The facts of each mode, by its name.

    Example:
        >>> mto.formats()["q4_k"].block_bytes
        144
    """
    return {info.mode: info for info in map(_info, _ext.formats())}


def _info(row: Mapping[str, Any]) -> FormatInfo:
    mode, group = row["name"], row["group"]
    case = (mx.float32, None, None, mode)
    ops = {
        op: tuple(backend for backend in BACKENDS if not _ext.supports(op, backend, *case))
        for op in OPS
    }
    return FormatInfo(
        mode=mode,
        bits=row["bits"],
        block=row["block"],
        block_bytes=row["block_bytes"],
        dtype=row["dtype"],
        scales=row["scales"],
        third=row["third"],
        group_size=(group[0] or None, group[1] or None),
        ops={op: backends for op, backends in ops.items() if backends},
    )
