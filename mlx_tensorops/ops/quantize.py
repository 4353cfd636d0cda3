"""Block quantization of a matrix."""

from __future__ import annotations

import mlx.core as mx

from mlx_tensorops import _ext


def quantize(
    w: mx.array,
    /,
    group_size: int | tuple[int, int] | None = None,
    bits: int | None = None,
    mode: str = "affine",
    *,
    global_scale: mx.array | None = None,
    route: str | None = None,
    force_fused: bool = False,
    stream: mx.Stream | mx.Device | None = None,
) -> tuple[mx.array, ...]:
    """Quantize a matrix into a format of codes and scales; in MLX's modes as ``mx.quantize`` does.

    ``"affine"``, for a group with extremes ``low`` and ``high``, of which the edge is the one of
    larger magnitude::

        s = (high - low) / (2^bits - 1), at least 1e-7, negative where the edge is high
        scale = edge / round(edge / s),  bias = edge      (bias = 0, scale = s if that rounds to 0)
        code = clip(round((w - bias) / scale), 0, 2^bits - 1)

    With 1 bit, ``scale = high - low`` and ``bias = low``. The arithmetic is float32. Scales and
    biases have gradients with respect to ``w`` through the extremes, which equal elements share;
    the codes have none.

    The other formats map the greatest magnitude of a group to the greatest code: by a scale that is
    the power of two above (E8M0) or the nearest E4M3; by a float32 scale (``"fp8_*"``, ``"nf4"``,
    ``"bnb_fp4"``). ``"ternary"`` and ``"bitnet"`` scale by the mean magnitude. A code is the
    nearest. A group with an infinity or NaN has the scale NaN where scales are bytes. Scales that
    are bytes have the gradient zero; a float32 scale of these formats has none: `fake_quantize` is
    for training. The blocks of ggml are decoded only.

    Args:
        w: ``(..., N, K)``, at least 2 dimensions, float32, float16 or bfloat16; K a multiple of
            the group and, where codes are packed into uint32, of 32.
        group_size: As in `dequantize`. Default: 64, and (128, 128) for ``"fp8_*"``.
        bits: Bits of a code, 1, 2, 3, 4, 5, 6 or 8 for ``"affine"``. Default: 4.
        mode: Name of a format. Default: ``"affine"``.
        global_scale: One float32 for ``"nvfp4"``, as in ``mx.quantize``. Default: ``None``.
        route: ``"ours"``, ``"mlx"``, or ``"auto"``: ours, but on a Mac MLX's where MLX has a kernel
            for the very case. Default: ``None``, which is ``"auto"``.
        force_fused: Raise instead of giving the call to ``mx.quantize``. Default: ``False``.
        stream: Stream or device to run on. Default: the default one.

    Returns:
        ``(w_q, scales, biases)`` as `dequantize` takes them, scales and biases of the dtype of
        ``w``; ``(w_q, scales)`` in the other modes, with scales uint8 or float32.

    Raises:
        ValueError: an unsupported mode, bits, group size, dtype or shape, or a call that no kernel
            of this package covers while ``force_fused``.

    Example:
        >>> w_q, scales, biases = mto.quantize(mx.random.normal((8, 64)))

    Source: ``mx.quantize``, MLX 0.32.4, determined by experiment; the others as in `dequantize`.
    """
    return tuple(_ext.quantize(w, group_size, bits, mode, global_scale, route, force_fused, stream))
