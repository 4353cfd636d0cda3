"""Reference of ``scaled_dot_product_attention``: dense, every option, values and derivatives.

For query i and key j of one head, i' = i + Lk - Lq (lower-right alignment; with ``cu_seqlens`` the
ends of the query's document meet instead)::

    s = scale * q . k;  s = c * tanh(s / c) with softcap c;  s -= slope * |i' - j|;  s += mask
    p = exp(s - lse),  lse = log(sum over visible keys of exp(s), and exp(sink)),  out = sum p * v

What is not visible to the query has s = -inf. A row without keys has out = 0 and lse = -inf, or
the sink. Query head h reads KV head h // (Hq / Hkv).

Rounding points, when not exact: every step, none of them below float32. The results are rounded
once more, ``out`` to the result type of q, k and v, a gradient to its input's dtype, by the caller.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import DTypeLike

from mlx_tensorops.reference._arrays import Array, matmul, sum_last, sum_to_shape, to_numpy

Each = mx.array | tuple[mx.array, mx.array]
Window = int | tuple[int | None, int | None]


@dataclass(frozen=True)
class Options:
    """The options of a call; see ``mlx_tensorops.scaled_dot_product_attention``."""

    scale: float
    mask: str | mx.array | None = None
    sinks: mx.array | None = None
    window: Window | None = None
    softcap: float | None = None
    alibi: mx.array | None = None
    segment_ids: Each | None = None
    cu_seqlens: Each | None = None
    block_mask: mx.array | None = None
    block_size: tuple[int, int] | None = None


def _each(ids: Each) -> tuple[Array, Array]:
    q, k = ids if isinstance(ids, tuple) else (ids, ids)
    return np.array(q).astype(np.int64), np.array(k).astype(np.int64)


def _documents_are_valid(options: Options, n_q: int, n_k: int) -> bool:
    """Whether cu_seqlens rises from 0 or more to the length or less."""
    if options.cu_seqlens is None:
        return True
    lengths = zip(_each(options.cu_seqlens), (n_q, n_k), strict=True)
    return all(0 <= e[0] and e[-1] <= n and (np.diff(e) >= 0).all() for e, n in lengths)


def places(options: Options, n_q: int, n_k: int) -> tuple[Array, Array]:
    """The aligned position i' of each query [Lq], and whether it shares its document [Lq, Lk]."""
    aligned = np.arange(n_q) + n_k - n_q
    if options.cu_seqlens is None:
        return aligned, np.ones((n_q, n_k), bool)
    together = np.zeros((n_q, n_k), bool)
    q_ends, k_ends = _each(options.cu_seqlens)
    for document in range(len(q_ends) - 1):
        rows = slice(q_ends[document], q_ends[document + 1])
        keys = slice(k_ends[document], k_ends[document + 1])
        together[rows, keys] = True
        aligned[rows] = np.arange(rows.start, rows.stop) + keys.stop - rows.stop
    return aligned, together


def visible(options: Options, n_q: int, n_k: int) -> tuple[Array, Array]:
    """Which keys each query sees [B or 1, Hq or 1, Lq, Lk], and the distances i' - j [Lq, Lk].

    An additive mask excludes keys by -inf, which is not looked at here.
    """
    aligned, together = places(options, n_q, n_k)
    offset = aligned[:, None] - np.arange(n_k)
    left, right = None, None
    if isinstance(options.window, int):
        left, right = options.window - 1, 0
    elif options.window is not None:
        left, right = options.window
    seen = together[None, None]
    if left is not None:
        seen = seen & (offset <= left)
    if right is not None:
        seen = seen & (offset >= -right)
    if isinstance(options.mask, str):
        seen = seen & (offset >= 0)
    elif options.mask is not None and options.mask.dtype == mx.bool_:
        seen = seen & np.array(options.mask)
    if options.segment_ids is not None:
        q_ids, k_ids = _each(options.segment_ids)
        seen = seen & ((q_ids[:, :, None] == k_ids[:, None]) & (q_ids[:, :, None] >= 0))[:, None]
    if options.block_mask is not None:
        assert options.block_size is not None
        blocks = np.array(options.block_mask)
        for axis, size, n in zip((-2, -1), options.block_size, (n_q, n_k), strict=True):
            if blocks.shape[axis] != 1 or size >= n:
                blocks = np.take(blocks, np.arange(n) // size, axis)
        seen = seen & blocks
    return seen, offset


@dataclass(frozen=True)
class Parts:
    """What lies between the inputs and the outputs of a call."""

    options: Options
    distance: Array
    "|i' - j| [Lq, Lk]."
    slope: Array
    "The softcap's derivative, [B, Hq, Lq, Lk] or a scalar."
    p: Array
    "The weights of the keys, [B, Hq, Lq, Lk]."
    sink: Array
    "The weight of the sink, [B, Hq, Lq]; 0 without one."
    lse: Array
    group: int
    "Query heads a KV head."

    def spread(self, kv: Array) -> Array:
        """[B, Hkv, ..] to [B, Hq, ..]."""
        return np.repeat(kv, self.group, axis=1)

    def gathered(self, heads: Array) -> Array:
        """Sums [B, Hq, ..] over the query heads of each KV head."""
        batch, n_heads, *rest = heads.shape
        return np.asarray(heads.reshape(batch, n_heads // self.group, self.group, *rest).sum(2))


def _transposed(a: Array) -> Array:
    return np.swapaxes(a, -1, -2)


def _row_sums(terms: Array) -> Array:
    return sum_last(terms) if terms.shape[-1] else terms.sum(-1)


def parts(q: Array, k: Array, options: Options) -> Parts:
    """The weights, from queries and keys in the arithmetic to use."""
    dtype = q.dtype
    n_q, n_k, group = q.shape[2], k.shape[2], q.shape[1] // max(k.shape[1], 1)
    if not _documents_are_valid(options, n_q, n_k):
        # Every result is NaN.
        q, options = q * np.nan, replace(options, cu_seqlens=None)
    seen, offset = visible(options, n_q, n_k)
    distance, slope = np.abs(offset).astype(dtype), np.ones((), dtype)
    scores = dtype.type(options.scale) * matmul(q, _transposed(np.repeat(k, group, axis=1)))
    if options.softcap is not None:
        cap = dtype.type(options.softcap)
        tanh = np.tanh(scores / cap)
        scores, slope = cap * tanh, 1 - tanh * tanh
    if options.alibi is not None:
        scores = scores - to_numpy(options.alibi, dtype)[:, None, None] * distance
    if isinstance(options.mask, mx.array) and options.mask.dtype != mx.bool_:
        scores = scores + to_numpy(options.mask, dtype)
    scores = np.where(seen, scores, dtype.type(-np.inf))
    logits = np.full((1, 1, 1), -np.inf, dtype)
    if options.sinks is not None:
        logits = to_numpy(options.sinks, dtype)[None, :, None]
    top = np.maximum(scores.max(-1, initial=-np.inf), logits)
    top = np.where(np.isinf(top), dtype.type(0), top)
    total = _row_sums(np.exp(scores - top[..., None])) + np.exp(logits - top)
    safe = np.where(total == 0, dtype.type(1), total)
    lse = top + np.log(safe)
    p, sink = np.exp(scores - lse[..., None]), np.exp(logits - lse)
    lse = np.where(total == 0, dtype.type(-np.inf), lse)
    return Parts(options, distance, slope, p, sink, lse, group)


def scaled_dot_product_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    options: Options,
    arithmetic: DTypeLike = np.float64,
) -> tuple[Array, Array]:
    """The output [B, Hq, Lq, Dv] and the logsumexp [B, Hq, Lq], in ``arithmetic``."""
    terms = parts(to_numpy(q, arithmetic), to_numpy(k, arithmetic), options)
    return matmul(terms.p, terms.spread(to_numpy(v, arithmetic))), terms.lse


Minus = Callable[[Any, Any], Any]


def gradients(
    terms: Parts, q: Array, k: Array, v: Array, d_out: Array, d_lse: Array, minus: Minus
) -> dict[str, Array]:
    """Gradients by the name of the input.

    With np.add for ``minus``, and absolute values, sums of the absolute values of their terms.
    """
    keys, values = terms.spread(k), terms.spread(v)
    delta = _row_sums(d_out * matmul(terms.p, values))
    d_weights = matmul(d_out, _transposed(values))
    d_scores = terms.p * minus(d_weights, minus(delta, d_lse)[..., None])
    d_products = terms.options.scale * terms.slope * d_scores
    result = {
        "q": matmul(d_products, keys),
        "k": terms.gathered(matmul(_transposed(d_products), q)),
        "v": terms.gathered(matmul(_transposed(terms.p), d_out)),
    }
    mask = terms.options.mask
    if isinstance(mask, mx.array) and mask.dtype != mx.bool_:
        result["mask"] = sum_to_shape(d_scores, mask.shape)
    if terms.options.alibi is not None:
        result["alibi"] = -(d_scores * terms.distance).sum((0, 2, 3))
    if terms.options.sinks is not None:
        result["sinks"] = -(terms.sink * minus(delta, d_lse)).sum((0, 2))
    return result


def vjp(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    options: Options,
    d_out: mx.array,
    d_lse: mx.array | None = None,
    arithmetic: DTypeLike = np.float64,
) -> dict[str, Array]:
    """Gradients of q, k, v, an additive mask, alibi and sinks, given the cotangents."""
    rows, keys, values, of_out = (to_numpy(a, arithmetic) for a in (q, k, v, d_out))
    of_lse = np.zeros(q.shape[:3], arithmetic) if d_lse is None else to_numpy(d_lse, arithmetic)
    terms = parts(rows, keys, options)
    return gradients(terms, rows, keys, values, of_out, of_lse, np.subtract)


def tangents(
    terms: Parts, q: Array, k: Array, v: Array, steps: dict[str, Array], minus: Minus
) -> tuple[Array, Array]:
    """Tangents of the outputs, given those of inputs by name; ``minus`` as in ``gradients``."""
    n_heads = q.shape[1]
    zero = {"q": q, "k": k, "v": v}
    d_q, d_k, d_v = (steps.get(name, np.zeros_like(a)) for name, a in zero.items())
    keys, d_keys = terms.spread(k), terms.spread(d_k)
    d_products = matmul(d_q, _transposed(keys)) + matmul(q, _transposed(d_keys))
    d_scores = terms.options.scale * terms.slope * d_products
    if "mask" in steps:
        d_scores = d_scores + steps["mask"]
    if "alibi" in steps:
        d_scores = minus(d_scores, steps["alibi"][:, None, None] * terms.distance)
    d_sinks = steps.get("sinks", np.zeros(n_heads, q.dtype))[None, :, None]
    d_lse = _row_sums(terms.p * d_scores) + terms.sink * d_sinks
    d_weights = terms.p * minus(d_scores, d_lse[..., None])
    d_out = matmul(d_weights, terms.spread(v)) + matmul(terms.p, terms.spread(d_v))
    return d_out, d_lse


def jvp(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    options: Options,
    steps: dict[str, mx.array],
    arithmetic: DTypeLike = np.float64,
) -> tuple[Array, Array]:
    """Tangents of the output and the logsumexp, given those of inputs by name."""
    rows, keys, values = (to_numpy(a, arithmetic) for a in (q, k, v))
    by_name = {name: to_numpy(step, arithmetic) for name, step in steps.items()}
    return tangents(parts(rows, keys, options), rows, keys, values, by_name, np.subtract)
