"""Arrays as the tensors that a kernel's tensor_handle arguments refer to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

HIGHEST_RANK = 16


@dataclass(frozen=True)
class Tensor:
    """What Metal's host calls an MTLTensor: memory, and extents and strides in elements.

    The outermost dimension comes first. `memory` is what the elements span, a flat view.
    """

    memory: np.ndarray[Any, Any]
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, array: np.ndarray[Any, Any]) -> Tensor:
        """The tensor with the array's elements, in the array's memory.

        Raises:
            ValueError: no tensor of Metal lies in memory like this array.
        """
        if not 1 <= array.ndim <= HIGHEST_RANK:
            raise ValueError(f"must have 1 to {HIGHEST_RANK} dimensions, got {array.ndim}")
        strides = tuple(_elements(array, step) for step in _strides(array))
        # The requirement on MTLTensor.strides (Apple's documentation of Metal).
        if strides[-1] != 1:
            raise ValueError(f"must be contiguous along the last axis, got strides {array.strides}")
        span = 1 + sum((n - 1) * step for n, step in zip(array.shape, strides, strict=True))
        memory = np.lib.stride_tricks.as_strided(
            array, (span if array.size else 0,), (array.itemsize,)
        )
        return cls(memory, array.shape, strides)


def _strides(array: np.ndarray[Any, Any]) -> list[int]:
    """In bytes; those of dimensions of one element, which NumPy leaves open, as if contiguous."""
    strides = list(array.strides)
    step = array.itemsize
    for axis in reversed(range(array.ndim)):
        if array.shape[axis] <= 1 or not array.size:
            strides[axis] = step
        step = max(step, strides[axis] * max(array.shape[axis], 1))
    return strides


def _elements(array: np.ndarray[Any, Any], step: int) -> int:
    if step <= 0 or step % array.itemsize:
        raise ValueError(f"must have positive strides of whole elements, got {array.strides}")
    return step // array.itemsize
