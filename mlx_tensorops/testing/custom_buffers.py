"""The memory of MLX's arrays as buffers of an emulated kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np

from mlx_tensorops.testing.emulator.values import pack

Buffer: TypeAlias = "np.ndarray[Any, Any]"

# NumPy has no bfloat16.
_TYPES: dict[mx.Dtype, Any] = {
    mx.bool_: np.bool_,
    mx.uint8: np.uint8,
    mx.uint16: np.uint16,
    mx.uint32: np.uint32,
    mx.uint64: np.uint64,
    mx.int8: np.int8,
    mx.int16: np.int16,
    mx.int32: np.int32,
    mx.int64: np.int64,
    mx.float16: np.float16,
    mx.bfloat16: np.uint16,
    mx.float32: np.float32,
    mx.complex64: np.complex64,
}


class Input:
    """An input, which gets its values when it is evaluated.

    Args:
        array: its shape and type are kept, not itself.
        described: which of "shape", "strides" and "ndim" are buffers of their own.
        row_contiguous: whether the kernel may rely on it.
    """

    def __init__(self, array: mx.array, described: Sequence[str], row_contiguous: bool) -> None:
        self._shape = tuple(array.shape)
        self._type = np.dtype(_TYPES[array.dtype])
        self._described = described
        self._row_contiguous = row_contiguous

    def buffers(self, memory: memoryview, first: int, strides: Sequence[int]) -> Iterator[Buffer]:
        """The buffers of the input.

        Args:
            memory: what the elements span.
            first: the index in it of the first element.
            strides: in elements.
        """
        data: Buffer = np.frombuffer(memory, self._type)
        expected = self._contiguous_strides()
        is_contiguous = all(
            size == 1 or given == wanted
            for size, given, wanted in zip(self._shape, strides, expected, strict=True)
        )
        # With negative strides there is memory in front of the first element, which a buffer does
        # not have.
        if not is_contiguous and data.size and (self._row_contiguous or first):
            steps = [stride * self._type.itemsize for stride in strides]
            view: Buffer = np.ndarray(
                self._shape, self._type, data, first * self._type.itemsize, steps
            )
            data, strides = np.ascontiguousarray(view), expected
        yield data
        facts: dict[str, Buffer] = {
            "shape": np.array(self._shape, np.int32),
            "strides": np.array(strides, np.int64),
            "ndim": np.array([len(self._shape)], np.int32),
        }
        yield from (facts[what] for what in self._described)

    def _contiguous_strides(self) -> list[int]:
        strides = [1] * len(self._shape)
        for axis in range(len(self._shape) - 1, 0, -1):
            strides[axis - 1] = strides[axis] * self._shape[axis]
        return strides


class Output:
    """An output, which gets its memory when it is evaluated."""

    def __init__(self, dtype: mx.Dtype, init_value: float | None) -> None:
        self._type = np.dtype(_TYPES[dtype])
        self._value = None if init_value is None else _scalar(dtype, init_value)

    def buffer(self, memory: memoryview) -> Buffer:
        """The buffer of the output: its initial value, or what is NaN in floating types."""
        data: Buffer = np.frombuffer(memory, self._type)
        if self._value is None:
            data.view(np.uint8)[...] = 0xFF
        else:
            data[...] = self._value
        return data


def _scalar(dtype: mx.Dtype, value: float) -> Any:
    if dtype == mx.bfloat16:
        bits = pack("bfloat16_t", value)
        assert bits is not None
        return bits.view(np.uint16)
    return np.array(value).astype(_TYPES[dtype])
