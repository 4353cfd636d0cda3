"""Decoding of a quantized matrix."""

from __future__ import annotations

import mlx.core as mx

from mlx_tensorops import _ext


def dequantize(
    w: mx.array,
    /,
    scales: mx.array,
    biases: mx.array | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    global_scale: mx.array | None = None,
    dtype: mx.Dtype | None = None,
    *,
    route: str | None = None,
    force_fused: bool = False,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    """Decode a quantized matrix: ``w[i] = scale * code[i] + bias``, as ``mx.dequantize`` does.

    The value is computed as one fused multiply-add in float32 and rounded once to the output dtype;
    ``mx.dequantize`` computes in the dtype of the scales. Differentiable in scales and biases.

    Args:
        w: Packed codes ``(..., n * bits / 32)``, uint32, at least 2 dimensions.
        scales: ``(..., n / group_size)``, float32, float16 or bfloat16.
        biases: The shape of ``scales``, any of these dtypes. Required in mode ``"affine"``.
        group_size: Values that share a scale: 32, 64 or 128. Default: 64.
        bits: Bits of a code: 1, 2, 3, 4, 5, 6 or 8. Default: 4.
        mode: ``"affine"``; ``"mxfp4"``, ``"mxfp8"`` and ``"nvfp4"`` are given to ``mx.dequantize``,
            with the defaults of that op.
        global_scale: For ``"nvfp4"`` only, as in ``mx.dequantize``. Default: ``None``.
        dtype: Output dtype. Default: the result type of scales and biases.
        route: ``"ours"``, ``"mlx"``, or ``"auto"``: ours, but on a Mac MLX's where MLX has a kernel
            for the very case. Default: ``None``, which is ``"auto"``.
        force_fused: Raise instead of giving the call to ``mx.dequantize``. Default: ``False``.
        stream: Stream or device to run on. Default: the default one.

    Returns:
        ``(..., n)`` of ``dtype``.

    Raises:
        ValueError: an unsupported mode, bits, group size, dtype or route, shapes that do not fit
            each other, or a call that no kernel of this package covers while ``force_fused``.

    Example:
        >>> w = mto.dequantize(*mto.quantize(mx.random.normal((8, 64))))

    Source: the affine mode of ``mx.dequantize``, MLX 0.32.4.
    """
    return _ext.dequantize(
        w, scales, biases, group_size, bits, mode, global_scale, dtype, route, force_fused, stream
    )
