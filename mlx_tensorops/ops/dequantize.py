"""Decoding of a quantized matrix."""

from __future__ import annotations

import mlx.core as mx

from mlx_tensorops import _ext


def dequantize(
    w: mx.array,
    /,
    scales: mx.array | None = None,
    biases: mx.array | None = None,
    group_size: int | tuple[int, int] | None = None,
    bits: int | None = None,
    mode: str = "affine",
    global_scale: mx.array | None = None,
    dtype: mx.Dtype | None = None,
    *,
    route: str | None = None,
    force_fused: bool = False,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    """Decode a quantized matrix: ``w[i] = level(code[i]) * scale + bias``, in any format.

    The value is computed as one fused multiply-add in float32 and rounded once to the output dtype;
    ``mx.dequantize`` computes in the dtype of the scales. Differentiable in float scales, in biases
    and in the global scale. The modes of E8M0 and E4M3 scales (uint8) also take floats, which are
    the scales themselves; those have a gradient.

    Args:
        w: Packed codes of ``(..., N, K)``, at least 2 dimensions, uint32 or uint8 as the format
            has them; ``"bitnet"``: ``(N / 4, K)``.
        scales: One value a group, ``(..., N, K / group_size)``; ``"fp8_*"``: one a block,
            ``(..., ceil(N / rows), ceil(K / columns))``; ``"ternary"``: ``(..., N)`` or one;
            ``"bitnet"``: one; None in the modes of ggml, whose blocks hold them.
        biases: The shape of ``scales``. Mode ``"affine"`` only, and required there.
        group_size: Values that share a scale, where the format leaves a choice: 16, 32, 64, 128 or
            256 for ``"affine"``, a multiple of 32 for ``"nf4"`` and ``"bnb_fp4"``, a pair (rows,
            columns) for ``"fp8_*"``. Default: 64, and (128, 128).
        bits: Bits of a code, 1, 2, 3, 4, 5, 6 or 8 for ``"affine"``. Default: 4.
        mode: Name of a format. Default: ``"affine"``.
        global_scale: One float32 for ``"nvfp4"``; scales are multiplied by a 2688th of it.
            Default: ``None``.
        dtype: Output dtype. Default: the result type of scales and biases; bfloat16 where scales
            are uint8, float32 where there are none.
        route: ``"ours"``, ``"mlx"``, or ``"auto"``: ours, but on a Mac MLX's where MLX has a kernel
            for the very case. Default: ``None``, which is ``"auto"``.
        force_fused: Raise instead of giving the call to ``mx.dequantize``. Default: ``False``.
        stream: Stream or device to run on. Default: the default one.

    Returns:
        ``(..., N, K)`` of ``dtype``.

    Raises:
        ValueError: an unsupported mode, bits, group size, dtype or route, shapes that do not fit
            each other, or a call that no kernel of this package covers while ``force_fused``.

    Example:
        >>> w = mto.dequantize(*mto.quantize(mx.random.normal((8, 64))))

    Source: ``mx.dequantize``, MLX 0.32.4; OCP Microscaling Formats 1.0; QLoRA (Dettmers et al.,
    2023); BitNet b1.58 (Ma et al., 2024); ggml's block layouts.
    """
    return _ext.dequantize(
        w, scales, biases, group_size, bits, mode, global_scale, dtype, route, force_fused, stream
    )
