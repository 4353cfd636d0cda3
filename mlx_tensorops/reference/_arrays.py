"""Conversions between ``mx.array`` and numpy that keep every value."""

from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np
from numpy.typing import DTypeLike, NDArray

Array: TypeAlias = NDArray[Any]


def to_numpy(array: mx.array, arithmetic: DTypeLike) -> Array:
    """Converts a float array of any dtype, by way of float32 since numpy has no bfloat16."""
    return np.array(array.astype(mx.float32)).astype(arithmetic)


def to_mlx(values: Array, dtype: mx.Dtype) -> mx.array:
    """Rounds float32 values once to ``dtype``."""
    return mx.array(values.astype(np.float32)).astype(dtype)


def matmul(a: Array, b: Array) -> Array:
    """``a @ b``; in float32 one product after the other, the order of the greatest error."""
    if a.dtype == np.float64:
        return np.asarray(a @ b)
    total = np.zeros(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1]))
    total = total.astype(a.dtype)
    for k in range(a.shape[-1]):
        total += a[..., :, k, None] * b[..., k, None, :]
    return total


def sum_last(terms: Array) -> Array:
    """Sums the last axis (not empty) from front to back, numpy's own sum being a better one."""
    return np.asarray(np.add.accumulate(terms, axis=-1)[..., -1])


def sum_to_shape(array: Array, shape: tuple[int, ...]) -> Array:
    """Adds up the axes that broadcasting to ``array.shape`` has added or stretched."""
    added = array.ndim - len(shape)
    array = array.sum(axis=tuple(range(added)))
    stretched = tuple(i for i, n in enumerate(shape) if n == 1 and array.shape[i] != 1)
    return np.asarray(array.sum(axis=stretched, keepdims=True))
