"""How far a result may be from its definition: a budget derived from the definition itself."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

# Explicit significand bits and the exponent of the smallest subnormal.
_FORMATS = {mx.float32: (23, -149), mx.float16: (10, -24), mx.bfloat16: (7, -133)}

# A kernel chooses its own order of summation: one order may be so much better than another.
_ORDER = 4
UNIT_ROUNDOFF = 2.0**-24


def significand_bits(dtype: mx.Dtype) -> int:
    """Without the leading one."""
    return _FORMATS[dtype][0]


def half_ulp(dtype: mx.Dtype, values: np.ndarray) -> np.ndarray:
    """The greatest error of rounding values of this magnitude once to ``dtype``."""
    bits, smallest = _FORMATS[dtype]
    exponent = np.frexp(np.abs(values))[1] - 1
    return np.ldexp(0.5, np.maximum(exponent - bits, smallest))


def to_float64(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def bits_of(array: mx.array) -> np.ndarray:
    """The bits of an array, every NaN being the same."""
    if not mx.issubdtype(array.dtype, mx.floating):
        return np.array(array)
    array = mx.where(mx.isnan(array), mx.array(float("nan"), array.dtype), array)
    return np.array(mx.view(array, {2: mx.uint16, 4: mx.uint32}[array.dtype.size]))


def assert_same_bits(actual: mx.array, expected: mx.array, what: str) -> None:
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype} is not {expected.dtype}"
    assert actual.shape == expected.shape, f"{what}: {actual.shape} is not {expected.shape}"
    differ = bits_of(actual) != bits_of(expected)
    assert not differ.any(), (
        f"{what}: {differ.sum()} of {differ.size} values differ, first at {_first(differ)}:"
        f" {_at(actual, differ)} is not {_at(expected, differ)}"
    )


@dataclass(frozen=True)
class Exact:
    """A result that has to be right to the last bit."""

    value: mx.array

    def check(self, actual: mx.array, what: str) -> None:
        assert_same_bits(actual, self.value, what)


@dataclass(frozen=True)
class Budget:
    """The exact result and how far each element may be from it."""

    exact: np.ndarray
    bound: np.ndarray
    dtype: mx.Dtype

    @classmethod
    def of(
        cls,
        definition: Callable[[type], np.ndarray],
        magnitude: np.ndarray,
        dtype: mx.Dtype,
        further: np.ndarray | float = 0,
    ) -> "Budget":
        """The budget of ``definition``, which takes the arithmetic that it shall use.

        ``magnitude`` is the sum of the absolute values of an element's terms. The greatest error
        that float32 shows in relation to it is granted to all, besides one rounding to ``dtype``.
        """
        exact = definition(np.float64)
        rate = UNIT_ROUNDOFF
        if exact.size:
            error = _error(definition(np.float32).astype(np.float64), exact)
            rate = max(rate, (error / np.maximum(magnitude, np.finfo(np.float64).tiny)).max())
        bound = _ORDER * rate * magnitude + further
        return cls(exact, bound + half_ulp(dtype, np.abs(exact) + bound), dtype)

    def __add__(self, other: "Budget") -> "Budget":
        """The budget of the sum of two results, itself rounded to the dtype."""
        exact, bound = self.exact + other.exact, self.bound + other.bound
        return Budget(exact, bound + half_ulp(self.dtype, np.abs(exact) + bound), self.dtype)

    def check(self, actual: mx.array, what: str) -> None:
        assert actual.dtype == self.dtype, f"{what}: {actual.dtype} is not {self.dtype}"
        assert actual.shape == self.exact.shape, f"{what}: {actual.shape} != {self.exact.shape}"
        error = _error(to_float64(actual), self.exact)
        over = ~(error <= self.bound)
        assert not over.any(), (
            f"{what}: {over.sum()} of {over.size} values are outside the error budget, first at"
            f" {_first(over)}: {_at(actual, over)} for {_at(self.exact, over)},"
            f" budget {_at(self.bound, over)}; worst {np.nanmax(error / self.bound):.3g} budgets"
        )


def _error(actual: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """None between two infinities of one sign."""
    with np.errstate(invalid="ignore"):
        return np.where(actual == exact, 0, np.abs(actual - exact))


def _first(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(mask)[0])


def _at(array: mx.array | np.ndarray, mask: np.ndarray) -> float:
    return array[_first(mask)].item()
