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
    """Quantize the rows of ``w`` in groups, as ``mx.quantize`` does, bit for bit.

    For a group with extremes ``low`` and ``high``, the edge is the one of larger magnitude::

        s = (high - low) / (2^bits - 1), at least 1e-7, negative where the edge is high
        scale = edge / round(edge / s),  bias = edge      (bias = 0, scale = s if that rounds to 0)
        code = clip(round((w - bias) / scale), 0, 2^bits - 1)

    With 1 bit, ``scale = high - low`` and ``bias = low``. The arithmetic is float32. Codes are
    packed in one stream of bits a row, least significant bit first. Scales and biases have
    gradients with respect to ``w`` through the extremes, which equal elements share; the codes
    have none.

    Args:
        w: ``(..., n)``, at least 2 dimensions, float32, float16 or bfloat16; n a multiple of
            ``group_size``.
        group_size: Values that share a scale: 32, 64 or 128. Default: 64.
        bits: Bits of a code: 1, 2, 3, 4, 5, 6 or 8. Default: 4.
        mode: ``"affine"``; ``"mxfp4"``, ``"mxfp8"`` and ``"nvfp4"`` are given to ``mx.quantize``,
            with the defaults of that op.
        global_scale: For ``"nvfp4"`` only, as in ``mx.quantize``. Default: ``None``.
        route: ``"ours"``, ``"mlx"``, or ``"auto"``: ours, but on a Mac MLX's where MLX has a kernel
            for the very case. Default: ``None``, which is ``"auto"``.
        force_fused: Raise instead of giving the call to ``mx.quantize``. Default: ``False``.
        stream: Stream or device to run on. Default: the default one.

    Returns:
        ``(w_q, scales, biases)``: ``w_q`` uint32 ``(..., n * bits / 32)``; ``scales`` and
        ``biases`` ``(..., n / group_size)`` of the dtype of ``w``. The other modes have no biases.

    Raises:
        ValueError: an unsupported mode, bits, group size, dtype or shape, or a call that no kernel
            of this package covers while ``force_fused``.

    Example:
        >>> w_q, scales, biases = mto.quantize(mx.random.normal((8, 64)))

    Source: the affine mode of ``mx.quantize``, MLX 0.32.4, determined by experiment.
    """
    return tuple(_ext.quantize(w, group_size, bits, mode, global_scale, route, force_fused, stream))
