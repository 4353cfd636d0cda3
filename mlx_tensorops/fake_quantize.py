"""Quantization-aware training: what a weight becomes, with a gradient that passes straight."""

from __future__ import annotations

import mlx.core as mx

from mlx_tensorops.ops.dequantize import dequantize
from mlx_tensorops.ops.quantize import quantize

_OP = "[fake_quantize]"

# In units of the scale: the greatest level and half the step before it.
_TERNARY_LIMIT = 1.5
_NVFP4_LIMIT = 7.0
# Codes of 1 in nvfp4.
_NVFP4_ONES = 0x22222222


def fake_quantize(
    w: mx.array,
    /,
    mode: str = "affine",
    group_size: int | tuple[int, int] | None = None,
    bits: int | None = None,
    *,
    global_scale: mx.array | None = None,
    clip: bool = True,
    route: str | None = None,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    """Round ``w`` to what ``quantize`` and ``dequantize`` make of it, for training through it.

    The gradient is the straight-through estimator: that of the result, as if nothing had been
    rounded; zero where the format clips a value (``clip``) and where it is not finite. Scales and
    biases count as constant. Works under ``mx.grad``, ``mx.jvp``, ``mx.vmap`` and ``mx.compile``.

    A scale fits the greatest value of its block, so that few formats clip: ``ternary`` and
    ``bitnet`` beyond 1.5 scales, and ``nvfp4`` beyond its greatest scale.

    Args:
        w: ``(..., n)``, at least 2 dimensions, float32, float16 or bfloat16.
        mode: A format of ``formats()`` that has an encoder. Default: ``"affine"``.
        group_size: As in ``quantize``. Default: ``None``, that of the mode.
        bits: As in ``quantize``. Default: ``None``, that of the mode.
        global_scale: For ``"nvfp4"`` only, as in ``quantize``. Default: ``None``.
        clip: Whether clipped values have no gradient. BitNet trains with ``False``. Default:
            ``True``.
        route: As in ``quantize``. Default: ``None``.
        stream: Stream or device to run on. Default: the default one.

    Returns:
        The shape and dtype of ``w``.

    Raises:
        ValueError: as ``quantize`` does.

    Example:
        >>> loss = lambda w: mx.square(x @ mto.fake_quantize(w, "mxfp4").T - y).sum()
        >>> d_w = mx.grad(loss)(w)

    Source: Bengio et al., Estimating or Propagating Gradients Through Stochastic Neurons (2013).
    """
    if not isinstance(w, mx.array):
        raise ValueError(f"{_OP} w must be an array, got {type(w).__name__}.")
    constant = mx.stop_gradient(w, stream=stream)
    w_q, *parameters = quantize(
        constant, group_size, bits, mode, global_scale=global_scale, route=route, stream=stream
    )
    form = (group_size, bits, mode, global_scale)
    scales, biases = parameters[0], parameters[1] if len(parameters) > 1 else None
    rounded = dequantize(w_q, scales, biases, *form, w.dtype, route=route, stream=stream)
    passes = mx.isfinite(constant, stream=stream)
    if clip and mode in ("ternary", "bitnet", "nvfp4"):
        limits = _limits(w_q, scales, form, stream)
        magnitudes = mx.abs(constant.astype(mx.float32, stream=stream), stream=stream)
        passes = passes & mx.less_equal(magnitudes, limits, stream=stream)
    straight = mx.where(passes, w, mx.zeros_like(w, stream=stream), stream=stream)
    # The difference is +0, and leaves the sign of a zero; its derivative is that of -straight.
    nothing = mx.subtract(mx.stop_gradient(straight, stream=stream), straight, stream=stream)
    return mx.subtract(mx.stop_gradient(rounded, stream=stream), nothing, stream=stream)


def _limits(
    w_q: mx.array,
    scales: mx.array,
    form: tuple[int | tuple[int, int] | None, int | None, str, mx.array | None],
    stream: mx.Stream | mx.Device | None,
) -> mx.array:
    """The greatest magnitude of each value that is rounded, not clipped."""
    if form[2] == "nvfp4":
        ones = mx.full(w_q.shape, _NVFP4_ONES, mx.uint32, stream=stream)
        units = dequantize(ones, scales, None, *form, mx.float32, stream=stream)
        return mx.multiply(units, _NVFP4_LIMIT, stream=stream)
    n_missing = w_q.ndim - scales.ndim
    units = mx.expand_dims(scales, tuple(range(-n_missing, 0)), stream=stream)
    return mx.multiply(units, _TERNARY_LIMIT, stream=stream)
