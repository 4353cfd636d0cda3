"""Reference of ``quantize``: see ``formats`` for the rules and their rounding points."""

import mlx.core as mx
import numpy as np
from numpy.typing import DTypeLike

from mlx_tensorops.reference._arrays import Array, to_mlx, to_numpy
from mlx_tensorops.reference.formats import affine
from mlx_tensorops.reference.formats.codebook import Codebook
from mlx_tensorops.reference.formats.fp8 import BlockFloat8
from mlx_tensorops.reference.formats.microscaling import Microscaling
from mlx_tensorops.reference.formats.packed import pack
from mlx_tensorops.reference.formats.table import FORMATS
from mlx_tensorops.reference.formats.ternary import Ternary


def quantize(
    w: mx.array,
    group_size: int | tuple[int, int] | None = 64,
    bits: int | None = 4,
    mode: str = "affine",
    global_scale: mx.array | None = None,
) -> tuple[mx.array, ...]:
    """Packed codes and scales, and in mode "affine" biases.

    Scales that are not bytes, and biases, are rounded to w's dtype at the very end (but those of
    the formats that MLX does not have are float32).
    """
    values = to_numpy(w, np.float32)
    if mode == "affine":
        assert isinstance(group_size, int) and bits is not None
        codes, scales, biases = affine.encode(values, group_size, bits)
        return mx.array(pack(codes, bits)), to_mlx(scales, w.dtype), to_mlx(biases, w.dtype)
    return tuple(map(mx.array, _encode(values, w.dtype, group_size, mode, global_scale)))


def _encode(
    values: Array,
    dtype: mx.Dtype,
    group_size: int | tuple[int, int] | None,
    mode: str,
    global_scale: mx.array | None,
) -> tuple[Array, Array]:
    encoder = FORMATS[mode]
    if isinstance(encoder, Microscaling):
        factor = None if global_scale is None else float(np.array(global_scale).item())
        return encoder.encode(values, lambda a: to_numpy(to_mlx(a, dtype), np.float32), factor)
    if isinstance(encoder, BlockFloat8):
        assert isinstance(group_size, tuple)
        return encoder.encode(values, group_size)
    if isinstance(encoder, Codebook):
        assert isinstance(group_size, int)
        return encoder.encode(values, group_size)
    if isinstance(encoder, Ternary):
        return encoder.encode(values)
    raise ValueError(f"[quantize] mode must be one with an encoder, got {mode!r}.")


def jvp(
    w: mx.array,
    tangent: mx.array,
    group_size: int = 64,
    bits: int = 4,
    arithmetic: DTypeLike = np.float64,
) -> tuple[Array, Array]:
    """Tangents of scales and biases; the codes are integers and have none."""
    d_scale, d_bias = derivatives(w, group_size, bits, arithmetic)
    groups = to_numpy(tangent, arithmetic).reshape(d_scale.shape)
    return (d_scale * groups).sum(-1), (d_bias * groups).sum(-1)


def vjp(
    w: mx.array,
    scales_cotangent: mx.array,
    biases_cotangent: mx.array,
    group_size: int = 64,
    bits: int = 4,
    arithmetic: DTypeLike = np.float64,
) -> Array:
    """Gradient of w, given the cotangents of scales and biases."""
    d_scale, d_bias = derivatives(w, group_size, bits, arithmetic)
    by_scale = d_scale * to_numpy(scales_cotangent, arithmetic)[..., None]
    by_bias = d_bias * to_numpy(biases_cotangent, arithmetic)[..., None]
    return np.asarray((by_scale + by_bias).reshape(w.shape))


def derivatives(
    w: mx.array, group_size: int, bits: int, arithmetic: DTypeLike
) -> tuple[Array, Array]:
    """Derivatives [..., G, group_size] of each group's scale and bias with respect to its values.

    Rounding counts as constant, so that scale = edge / steps and bias = edge follow the edge alone.
    Values equal to an extreme share its derivative: then the vjp is the adjoint of the jvp.
    """
    n_groups = w.shape[-1] // group_size
    groups = to_numpy(w, np.float32).reshape(*w.shape[:-1], n_groups, group_size)
    with np.errstate(all="ignore"):
        _, _, edge, steps = affine.parameters(groups, bits)
    low, high = affine.extremes(groups)
    at_low, at_high, at_edge = (_share(groups, extreme) for extreme in (low, high, edge))
    if bits == 1:
        is_stretched = high - low < np.float32(affine.SMALLEST_SCALE)
        d_scale = np.where(is_stretched[..., None], 0, at_high - at_low)
        return d_scale.astype(arithmetic), at_low.astype(arithmetic)
    has_edge = steps[..., None] != 0
    d_bias = np.where(has_edge, at_edge, 0).astype(arithmetic)
    return d_bias / np.where(has_edge, steps[..., None], 1).astype(arithmetic), d_bias


def _share(groups: Array, extreme: Array) -> Array:
    """One over the count of values equal to the group's extreme at each of them, zero elsewhere."""
    is_extreme = groups == extreme[..., None]
    return np.asarray(is_extreme / np.maximum(is_extreme.sum(-1, keepdims=True), 1))
