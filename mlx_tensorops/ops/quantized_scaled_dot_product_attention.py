"""Attention over quantized keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import mlx.core as mx

from mlx_tensorops import _ext

_T = TypeVar("_T")
_OP = "[quantized_scaled_dot_product_attention]"


def quantized_scaled_dot_product_attention(
    q: mx.array,
    k_quantized: Sequence[mx.array],
    v_quantized: Sequence[mx.array],
    scale: float,
    mask: str | mx.array | None = None,
    group_size: int | None | tuple[int | None, int | None] = 64,
    bits: int | None | tuple[int | None, int | None] = 8,
    mode: str | tuple[str, str] = "affine",
    *,
    sinks: mx.array | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    alibi: mx.array | None = None,
    segment_ids: mx.array | tuple[mx.array, mx.array] | None = None,
    cu_seqlens: mx.array | tuple[mx.array, mx.array] | None = None,
    block_mask: mx.array | None = None,
    block_size: tuple[int, int] | None = None,
    return_lse: bool = False,
    precision: str | None = None,
    route: str | None = None,
    force_fused: bool = False,
    stream: mx.Stream | mx.Device | None = None,
) -> mx.array | tuple[mx.array, mx.array]:
    """Attend to keys and values that ``mlx_tensorops.quantize`` has packed, as caches keep them.

    The meaning is that of ``scaled_dot_product_attention`` on the decoded keys and values, which
    are not rounded below float32, but that a kernel may round values to a 16-bit q's dtype before
    it sums them. Differentiable in q, scales and biases; vmappable.

    Args:
        q: ``(B, Hq, Lq, D)``, float32, float16 or bfloat16. It is not written to.
        k_quantized: ``(w, scales, biases)`` of keys ``(B, Hkv, Lk, D)`` quantized along the last
            axis; ``(w, scales)`` in the modes without biases.
        v_quantized: The same of values ``(B, Hkv, Lk, Dv)``.
        scale: Factor of the scores, often ``D ** -0.5``.
        mask: As in ``scaled_dot_product_attention``. Default: ``None``.
        group_size: Values that share a scale, or a pair for keys and values. Default: 64.
        bits: Bits of a code, or a pair. Default: 8.
        mode: ``"affine"``, ``"mxfp4"``, ``"mxfp8"`` or ``"nvfp4"``, or a pair. Default:
            ``"affine"``.
        sinks: As in ``scaled_dot_product_attention``. Default: ``None``.
        window: As in ``scaled_dot_product_attention``. Default: ``None``.
        softcap: As in ``scaled_dot_product_attention``. Default: ``None``.
        alibi: As in ``scaled_dot_product_attention``. Default: ``None``.
        segment_ids: As in ``scaled_dot_product_attention``. Default: ``None``.
        cu_seqlens: As in ``scaled_dot_product_attention``. Default: ``None``.
        block_mask: As in ``scaled_dot_product_attention``. Default: ``None``.
        block_size: As in ``scaled_dot_product_attention``. Default: ``None``.
        return_lse: Return the logsumexp as well. Default: ``False``.
        precision: As in ``scaled_dot_product_attention``. Default: ``None``.
        route: As in ``scaled_dot_product_attention``. Default: ``None``.
        force_fused: Raise instead of decoding keys and values to memory. Default: ``False``.
        stream: Stream or device to run on. Default: the default one.

    Returns:
        ``(B, Hq, Lq, Dv)`` of the dtype of q; with ``return_lse`` a pair with the logsumexp
        ``(B, Hq, Lq)``, float32.

    Raises:
        ValueError: shapes, dtypes, formats or values that do not fit, or a call that no kernel of
            this package covers while ``force_fused``.

    Example:
        >>> q, k, v = (mx.random.normal((1, 8, 16, 64)) for _ in range(3))
        >>> packed = [mto.quantize(a, 64, 8) for a in (k, v)]
        >>> out = mto.quantized_scaled_dot_product_attention(q, *packed, 64**-0.5, "causal")

    Source: ``mlx_lm.models.base.quantized_scaled_dot_product_attention``, mlx-lm 0.32.2.
    """
    group_sizes = _pair("group_size", group_size)
    all_bits, modes = _pair("bits", bits), _pair("mode", mode)
    for name, arrays in (("k_quantized", k_quantized), ("v_quantized", v_quantized)):
        if not isinstance(arrays, tuple | list):
            found = type(arrays).__name__
            raise ValueError(f"{_OP} {name} must be (w, scales, biases), got {found}.")
    keys, values = (
        _ext.QuantizedOperand(list(arrays), group_sizes[i], all_bits[i], modes[i])
        for i, arrays in enumerate((k_quantized, v_quantized))
    )
    options = _ext.AttentionOptions(
        mask,
        sinks,
        window,
        softcap,
        alibi,
        segment_ids,
        cu_seqlens,
        block_mask,
        block_size,
        return_lse,
        precision,
        route,
        force_fused,
    )
    out, lse = _ext.quantized_scaled_dot_product_attention(q, keys, values, scale, options, stream)
    return (out, lse) if return_lse else out


def _pair(name: str, value: _T | tuple[_T, _T]) -> tuple[_T, _T]:
    if not isinstance(value, tuple | list):
        return value, value
    if len(value) != 2:
        raise ValueError(f"{_OP} {name} must be a value or a pair of them, got {value}.")
    return value[0], value[1]
