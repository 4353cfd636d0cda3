"""Attention with every mask."""

from __future__ import annotations

import mlx.core as mx

from mlx_tensorops import _ext


def scaled_dot_product_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    mask: str | mx.array | None = None,
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
    """Attend: ``softmax(scale * q @ k.T) @ v``, a superset of ``mx.fast``'s op.

    For query i and key j, with ``i' = i + Lk - Lq`` (the last query is aligned with the last key)::

        s = scale * q . k;  s = c * tanh(s / c) with softcap c;  s -= slope * |i' - j|;  s += mask
        out = sum of p * v,  p = exp(s - lse),  lse = log(sum of exp(s), and of exp(sink))

    The sums go over the keys that every option lets the query see. Scores are float32. A query
    that sees no key has the output 0, no gradient, and the lse -inf, or its sink. Tiles of keys
    that causality, window, segments, documents or the block mask exclude are not visited. Memory is
    linear in the lengths, in the backward pass too. Differentiable in q, k, v, an additive mask,
    sinks and alibi, also through the lse; tangents and second derivatives take a graph of MLX's
    ops. Vmappable in all inputs but ``cu_seqlens``.

    Args:
        q: ``(B, Hq, Lq, D)``, float32, float16 or bfloat16.
        k: ``(B, Hkv, Lk, D)``; Hq is a multiple of Hkv, and query head h reads head
            ``h // (Hq / Hkv)``.
        v: ``(B, Hkv, Lk, Dv)``.
        scale: Factor of the scores, often ``D ** -0.5``.
        mask: ``"causal"``: key j is visible where ``j <= i'``. Or an array that broadcasts to
            ``(B, Hq, Lq, Lk)``: bool, True is visible; any other dtype is added to the scores, and
            -inf excludes. Default: ``None``.
        sinks: ``(Hq,)``, one more score a head, without a value; not softcapped. Default: ``None``.
        window: An int w: ``0 <= i' - j < w``. A pair (l, r): ``i' - l <= j <= i' + r``, where
            ``None`` is no limit. Default: ``None``.
        softcap: c, positive. Default: ``None``, no cap.
        alibi: ``(Hq,)``, the slopes, at least 0. Default: ``None``.
        segment_ids: ``(B, Lq)`` of integers below 2^31 where Lq is Lk, else a pair with that of the
            keys ``(B, Lk)``. A query sees the keys of its id; a negative id is padding, which sees
            and is seen by none. Positions stay those of the whole row. Default: ``None``.
        cu_seqlens: ``(n + 1,)`` integers, the ends of n documents that follow each other in a batch
            of one, the first being the start; or a pair for queries and keys. A query sees keys of
            its document, whose end i' is aligned with. Values that fall or leave the length give
            NaN. Default: ``None``.
        block_mask: Bool, broadcasts to ``(B, Hq, ceil(Lq / bq), ceil(Lk / bk))``; False excludes a
            block of scores. Default: ``None``.
        block_size: ``(bq, bk)``, required by ``block_mask``. Default: ``None``.
        return_lse: Return the lse as well. Default: ``False``.
        precision: ``"tf32"`` lets a Mac round operands of float32 products to 11 significant bits.
            Default: ``None``, full float32.
        route: ``"ours"``, ``"mlx"``, or ``"auto"``: ours, but on a Mac MLX's where MLX has a kernel
            for the very case. Default: ``None``, which is ``"auto"``.
        force_fused: Raise instead of composing MLX's ops. Default: ``False``.
        stream: Stream or device to run on. Default: the default one.

    Returns:
        ``(B, Hq, Lq, Dv)`` of the result type of q, k and v; with ``return_lse`` a pair with the
        lse ``(B, Hq, Lq)``, float32.

    Raises:
        ValueError: shapes, dtypes or values that do not fit the above, ``segment_ids`` together
            with ``cu_seqlens``, or a call that no kernel of this package covers while
            ``force_fused``.

    Example:
        >>> q = k = v = mx.random.normal((1, 8, 128, 64))
        >>> out = mto.scaled_dot_product_attention(q, k, v, scale=64**-0.5, mask="causal")

    Source: ``mx.fast.scaled_dot_product_attention``, MLX 0.32.4; Dao, arXiv:2307.08691; alibi:
    Press et al., arXiv:2108.12409.
    """
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
    out, lse = _ext.scaled_dot_product_attention(q, k, v, scale, options, stream)
    return (out, lse) if return_lse else out
