"""Reference of ``dequantize``: see ``formats`` for the layouts and the rounding points."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
from numpy.typing import DTypeLike

from mlx_tensorops.reference._arrays import Array, to_mlx, to_numpy
from mlx_tensorops.reference.formats.microscaling import GLOBAL_UNIT
from mlx_tensorops.reference.formats.packed import Packed
from mlx_tensorops.reference.formats.table import FORMATS

GroupSize = int | tuple[int, int] | None


def dequantize(
    w: mx.array,
    scales: mx.array | None = None,
    biases: mx.array | None = None,
    group_size: GroupSize = 64,
    bits: int | None = 4,
    dtype: mx.Dtype | None = None,
    mode: str = "affine",
    global_scale: mx.array | None = None,
) -> mx.array:
    """Values rounded to float32, then to ``dtype`` (else the common dtype of scales and biases)."""
    parameters = [p for p in (scales, biases) if p is not None]
    common = dtype or mx.result_type(*parameters)
    values = weights(w, scales, biases, group_size, bits, np.float32, mode, global_scale)
    return to_mlx(values, common)


def weights(
    w: mx.array,
    scales: mx.array | None = None,
    biases: mx.array | None = None,
    group_size: GroupSize = 64,
    bits: int | None = 4,
    arithmetic: DTypeLike = np.float64,
    mode: str = "affine",
    global_scale: mx.array | None = None,
) -> Array:
    """The values of packed w: scale * code + bias."""
    packed = as_packed(w, scales, biases, group_size, bits, global_scale)
    return FORMATS[mode].decode(packed).values(arithmetic)


def as_packed(
    w: mx.array,
    scales: mx.array | None,
    biases: mx.array | None,
    group_size: GroupSize,
    bits: int | None,
    global_scale: mx.array | None = None,
) -> Packed:
    """The arrays in numpy: stored bytes as they are, floats as float32."""

    def parameter(array: mx.array | None) -> Array | None:
        if array is None:
            return None
        return np.array(array) if array.dtype == mx.uint8 else to_numpy(array, np.float32)

    factor = None if global_scale is None else float(np.array(global_scale).item())
    return Packed(
        np.array(w), parameter(scales), parameter(biases), group_size, bits, global_scale=factor
    )


def vjp(
    w: mx.array,
    scales: mx.array,
    cotangent: mx.array,
    group_size: GroupSize = 64,
    bits: int | None = 4,
    arithmetic: DTypeLike = np.float64,
    mode: str = "affine",
    global_scale: mx.array | None = None,
) -> tuple[Array, Array]:
    """Gradients of scales and biases: sums over the group of cotangent * code and of cotangent."""
    packed = as_packed(w, scales, None, group_size, bits, global_scale)
    return parameter_gradients(packed, to_numpy(cotangent, arithmetic), mode)


def parameter_gradients(
    packed: Packed, cotangent: Array, mode: str = "affine"
) -> tuple[Array, Array]:
    """Gradients of float scales and of biases in their place, given that of the values [..., K].

    Sums run from front to back, in the dtype of the cotangent.
    """
    assert packed.scales is not None
    # Decoding the scales' own positions says which one a value has.
    places = np.arange(packed.scales.size, dtype=np.float32).reshape(packed.scales.shape)
    terms = FORMATS[mode].decode(replace(packed, scales=places, biases=places, global_scale=None))
    owners = terms.scales.astype(np.int64).reshape(-1)
    codes = terms.codes.astype(cotangent.dtype)
    if packed.global_scale is not None:
        codes = codes * (np.float32(packed.global_scale) / GLOBAL_UNIT).astype(codes.dtype)
    d_scales, d_biases = (np.zeros(packed.scales.size, cotangent.dtype) for _ in range(2))
    np.add.at(d_scales, owners, (cotangent * codes).reshape(-1))
    np.add.at(d_biases, owners, cotangent.reshape(-1))
    return d_scales.reshape(packed.scales.shape), d_biases.reshape(packed.scales.shape)
