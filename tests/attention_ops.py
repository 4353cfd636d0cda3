"""Attention, as the checks want to know it."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
from affine_cases import random_floats
from cases import Op
from tolerance import UNIT_ROUNDOFF, Budget, half_ulp, significand_bits, to_float64

import mlx_tensorops as mto
from mlx_tensorops.reference import scaled_dot_product_attention as reference

ARITHMETICS = (np.float64, np.float32)

# Below this, float32 has no digits left: weights of keys that count for nothing.
_FLOOR = 1e-30


def operands(seed, n_q=9, n_k=33, dtype=mx.float32, heads=(4, 2), d=16, batch=2):
    """Random q, k and v of calls outside the case table."""
    rng = np.random.default_rng(seed)
    shapes = [(batch, heads[0], n_q, d), (batch, heads[1], n_k, d), (batch, heads[1], n_k, d)]
    return [random_floats(rng, shape, dtype) for shape in shapes]


def inputs_of(case):
    """Names of the input arrays, in order."""
    names = ["q", "k", "v"]
    names += ["mask"] * (case.mask not in ("", "causal"))
    names += ["alibi"] * case.alibi + ["sinks"] * case.sinks
    names += ["q_segments", "k_segments"] * bool(case.segments)
    names += ["q_documents", "k_documents"] * case.documents
    return tuple(names + ["block_mask"] * bool(case.blocks))


def random_mask(case, rng):
    sizes = (case.batch, case.heads[0], case.n_q, case.n_k)
    shape = tuple(n if axis in case.mask_axes else 1 for axis, n in zip("BHQK", sizes, strict=True))
    hidden = rng.random(shape) < 0.3
    hidden[..., :1, :] |= shape[-2] > 1  # a row without keys
    if case.mask == "bool":
        return mx.array(~hidden)
    if case.mask == "int32":
        return mx.array(rng.integers(-3, 4, shape).astype(np.int32))
    values = np.where(hidden, -np.inf, rng.standard_normal(shape))
    return mx.array(values.astype(np.float32)).astype(getattr(mx, case.mask))


def random_segments(case, rng, n):
    """Ids 0 .. 3 and padding, of -1 and -7; a query without a key of its id is likely."""
    ids = rng.choice([0, 1, 2, 3, -1, -7], (case.batch, n), p=[0.3, 0.3, 0.15, 0.1, 0.1, 0.05])
    return mx.array((np.sort(ids, axis=-1) if case.segments == "sorted" else ids).astype(np.int32))


def random_documents(case, rng, n):
    """Four documents, some empty; positions before and behind them are in none."""
    return mx.array(np.sort(rng.integers(0, n + 1, 5)).astype(np.int32))


class ScaledDotProductAttention(Op):
    name = "scaled_dot_product_attention"

    def __init__(self, case):
        self.inputs = inputs_of(case)
        floats = ("q", "k", "v", "alibi", "sinks")
        if case.mask not in ("bool", "int32"):
            floats += ("mask",)
        self.differentiable = tuple(i for i, name in enumerate(self.inputs) if name in floats)
        self.float_outputs = (0, 1) if case.lse else (0,)

    def mappable(self):
        return tuple(i for i, name in enumerate(self.inputs) if "documents" not in name)

    def arrays(self, case, variant=0):
        rng = case.rng(variant)
        n_heads, n_kv_heads = case.heads
        dtype, per_head = getattr(mx, case.dtype), getattr(mx, case.per_head)
        shapes = {
            "q": (case.batch, n_heads, case.n_q, case.d[0]),
            "k": (case.batch, n_kv_heads, case.n_k, case.d[0]),
            "v": (case.batch, n_kv_heads, case.n_k, case.d[1]),
        }
        blocks = [-(-n // size) for n, size in zip((case.n_q, case.n_k), case.blocks, strict=False)]
        make = {
            "mask": lambda: random_mask(case, rng),
            "alibi": lambda: mx.abs(random_floats(rng, (n_heads,), per_head)) / 4,
            "sinks": lambda: random_floats(rng, (n_heads,), per_head),
            "q_segments": lambda: random_segments(case, rng, case.n_q),
            "k_segments": lambda: random_segments(case, rng, case.n_k),
            # The same in every variant.
            "q_documents": lambda: random_documents(case, case.rng(100), case.n_q),
            "k_documents": lambda: random_documents(case, case.rng(101), case.n_k),
            "block_mask": lambda: mx.array(rng.random((case.batch, 1, *blocks)) < 0.6),
        }
        arrays = [
            (random_floats(rng, shapes[name], mx.float32) * (1 if name == "v" else case.magnitude))
            if name in shapes
            else make[name]()
            for name in self.inputs
        ]
        return [a.astype(dtype) if i < 3 else a for i, a in enumerate(arrays)]

    def options(self, case, arrays):
        """The keyword arguments of the op, but for the flags."""
        by_name = dict(zip(self.inputs, arrays, strict=True))
        options = {
            "scale": case.scale,
            "mask": "causal" if case.mask == "causal" else by_name.get("mask"),
            "window": case.window,
            "softcap": case.softcap,
            "alibi": by_name.get("alibi"),
            "sinks": by_name.get("sinks"),
        }
        if case.segments:
            options["segment_ids"] = by_name["q_segments"], by_name["k_segments"]
        if case.documents:
            options["cu_seqlens"] = by_name["q_documents"], by_name["k_documents"]
        if case.blocks:
            options |= {"block_mask": by_name["block_mask"], "block_size": case.blocks}
        return options

    def call(self, case, arrays, stream):
        options = self.options(case, arrays)
        outputs = mto.scaled_dot_product_attention(
            *arrays[:3], **options, return_lse=case.lse, force_fused=True, stream=stream
        )
        return outputs if case.lse else (outputs,)

    def parts(self, case, arrays, arithmetic=np.float64):
        """The definition's weights, and the operands in that arithmetic."""
        options = reference.Options(**self.options(case, arrays))
        operands = [to_float64(a).astype(arithmetic) for a in arrays[:3]]
        with np.errstate(all="ignore"):
            return reference.parts(*operands[:2], options), operands

    def both_parts(self, case, arrays):
        return {a: self.parts(case, arrays, a) for a in ARITHMETICS}

    def expected(self, case, arrays):
        both = self.both_parts(case, arrays)

        def outputs(arithmetic):
            terms, (_, _, v) = both[arithmetic]
            return np.matmul(terms.p, terms.spread(v)), terms.lse

        terms, (q, k, v) = both[np.float64]
        magnitude = np.matmul(terms.p, terms.spread(np.abs(v))) + _FLOOR
        products = np.matmul(np.abs(q), np.swapaxes(terms.spread(np.abs(k)), -1, -2))
        scores = case.scale * products.max(-1, initial=0)
        lse = 1 + scores + np.where(np.isinf(terms.lse), 0, np.abs(terms.lse))
        off = weight_error(case, terms)
        budgets = [
            Budget.of(lambda a: outputs(a)[0], magnitude, arrays[0].dtype, magnitude * off),
            Budget.of(lambda a: outputs(a)[1], lse, mx.float32),
        ]
        return budgets if case.lse else budgets[:1]

    def names(self):
        return [self.inputs[i] for i in self.differentiable]

    def expected_jvp(self, case, arrays, tangents):
        def outputs(arithmetic, minus=np.subtract):
            terms, operands = self.parts(case, arrays, arithmetic)
            steps = [to_float64(t).astype(arithmetic) for t in tangents]
            if minus is np.add:
                operands, steps = map(np.abs, operands), map(np.abs, steps)
            by_name = dict(zip(self.names(), steps, strict=True))
            return reference.tangents(terms, *operands, by_name, minus)

        results = {arithmetic: outputs(arithmetic) for arithmetic in ARITHMETICS}
        magnitudes = outputs(np.float64, np.add)
        dtypes = (arrays[0].dtype, mx.float32)
        return [
            Budget.of(lambda a, i=i: results[a][i], magnitudes[i] + _FLOOR, dtypes[i])
            for i in self.float_outputs
        ]

    def expected_vjp(self, case, arrays, cotangents):
        def gradients(arithmetic, minus=np.subtract, **changes):
            terms, operands = self.parts(case, arrays, arithmetic)
            vectors = [to_float64(c).astype(arithmetic) for c in cotangents]
            if not case.lse:
                vectors.append(np.zeros(arrays[0].shape[:3], arithmetic))
            if minus is np.add:
                operands, vectors = map(np.abs, operands), map(np.abs, vectors)
            return reference.gradients(replace(terms, **changes), *operands, *vectors, minus)

        results = {arithmetic: gradients(arithmetic) for arithmetic in ARITHMETICS}
        magnitudes = gradients(np.float64, np.add)
        # Of the weights, and of the output that is handed to the backward pass.
        off = 2 * weight_error(case, self.parts(case, arrays)[0])
        # 1 - tanh^2 is as far off as its terms, however small it is.
        of_slopes = gradients(np.float64, np.add, slope=8 * UNIT_ROUNDOFF) if case.softcap else {}
        budgets = []
        for i in self.differentiable:
            name = self.inputs[i]
            magnitude = np.abs(magnitudes[name]) + _FLOOR
            further = off * magnitude
            if name in ("q", "k") and of_slopes:
                further = further + np.abs(of_slopes[name])
            definition = lambda a, name=name: results[a][name]  # noqa: E731
            budgets.append(Budget.of(definition, magnitude, arrays[i].dtype, further))
        return budgets

    def resized(self, case, n_rows):
        return replace(case, n_q=n_rows)

    def empty(self, case):
        yield replace(case, n_q=0)
        yield replace(case, n_k=0)
        yield replace(case, d=(0, case.d[1]))
        yield replace(case, d=(case.d[0], 0))
        if not case.documents:
            yield replace(case, batch=0)


def weight_error(case, terms):
    """How far off a weight may be, relative to itself, beside the error of its score.

    It is the exponential of a difference from a rounded lse; 16-bit kernels may round it before
    the second product.
    """
    lse = np.where(np.isinf(terms.lse), 0, terms.lse)
    in_float32 = half_ulp(mx.float32, lse).max(initial=0) + 2 * UNIT_ROUNDOFF
    if case.dtype == "float32":
        return in_float32
    return in_float32 + 2.0 ** -(significand_bits(getattr(mx, case.dtype)) + 1)
