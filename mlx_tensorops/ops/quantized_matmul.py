"""Matrix product with a quantized matrix."""

from __future__ import annotations

import mlx.core as mx

from mlx_tensorops import _ext


def quantized_matmul(
    x: mx.array,
    w: mx.array,
    /,
    scales: mx.array | None = None,
    biases: mx.array | None = None,
    transpose: bool = True,
    group_size: int | tuple[int, int] | None = None,
    bits: int | None = None,
    mode: str = "affine",
    *,
    global_scale: mx.array | None = None,
    precision: str | None = None,
    route: str | None = None,
    force_fused: bool = False,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array:
    """Multiply by a quantized matrix of any format: ``y = x @ W.T`` (or ``x @ W``).

    The weights are decoded in registers and cache, never in memory. Products are summed in
    float32, in one order whatever the number of threads, and of rows (in Metal kernels, of up to 32
    rows; with more, 16-bit products take weights of x's dtype): a row of a batch has the bits of
    that row alone. Differentiable in x, float scales and biases (not in the codes), to any order;
    vmappable in all inputs. The formats and their arrays are those of `dequantize`.

    Args:
        x: ``(..., M, K)`` or ``(K,)``, float32, float16 or bfloat16. Leading dimensions broadcast
            with those of ``w``.
        w: Packed codes: of a matrix ``(..., N, K)`` when ``transpose``, else ``(..., K, N)``,
            quantized along the last axis.
        scales: As in `dequantize`. Floats need not have the dtype of ``x``. None in the modes of
            ggml.
        biases: The shape of ``scales``. Mode ``"affine"`` only, and required there.
        transpose: Whether ``w`` is used transposed. Default: ``True``.
        group_size: As in `dequantize`. Default: 64, and (128, 128) for ``"fp8_*"``.
        bits: Bits of a code, 1, 2, 3, 4, 5, 6 or 8 for ``"affine"``. Default: 4.
        mode: Name of a format. Default: ``"affine"``.
        global_scale: One float32 for ``"nvfp4"``, as in `dequantize`. Default: ``None``.
        precision: ``"tf32"`` lets a Mac round operands of float32 products to 11 significant bits.
            Default: ``None``, full float32.
        route: ``"ours"``, ``"mlx"``, or ``"auto"``: ours, but on a Mac MLX's where MLX has a kernel
            for the very case. Default: ``None``, which is ``"auto"``.
        force_fused: Raise instead of giving the call to ``mx.quantized_matmul``. Default:
            ``False``.
        stream: Stream or device to run on. Default: the default one.

    Returns:
        ``(..., M, N)`` of the dtype of ``x``. (``mx.quantized_matmul`` returns the result type of
        x, scales and biases: float32 for a bfloat16 x with float32 scales.)

    Raises:
        ValueError: an unsupported mode, bits, group size, dtype or route, shapes that do not fit
            each other, or a call that no kernel of this package covers while ``force_fused``.

    Example:
        >>> w_q, scales, biases = mto.quantize(mx.random.normal((32, 64)))
        >>> y = mto.quantized_matmul(mx.random.normal((4, 64)), w_q, scales, biases)

    Source: the affine mode of ``mx.quantized_matmul``, MLX 0.32.4; blocking after Goto and van de
    Geijn, ACM TOMS 34(3), 2008.
    """
    return _ext.quantized_matmul(
        x,
        w,
        scales,
        biases,
        transpose,
        group_size,
        bits,
        mode,
        global_scale,
        precision,
        route,
        force_fused,
        stream,
    )
