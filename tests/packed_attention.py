"""Calls of quantized_scaled_dot_product_attention, and what they have to give."""

import mlx.core as mx
import numpy as np
from affine_cases import random_floats
from tolerance import Budget

import mlx_tensorops as mto
from mlx_tensorops.reference import quantized_scaled_dot_product_attention as reference
from mlx_tensorops.reference.scaled_dot_product_attention import Options

D, D_V = 128, 256
FORMATS = [(32, 8), (64, 4), (128, 2), (64, 6), (32, 3), (64, 8)]


def operands(seed, n_q, n_k, formats, dtype="float32", heads=(8, 2), batch=1):
    """R4: a query, and packed keys and values."""
    rng = np.random.default_rng(seed)
    dtype = getattr(mx, dtype)
    q = random_floats(rng, (batch, heads[0], n_q, D), dtype)
    packed = [
        mto.quantize(random_floats(rng, (batch, heads[1], n_k, d), dtype), *form, stream=mx.cpu)
        for d, form in zip((D, D_V), formats, strict=True)
    ]
    mx.eval(q, packed)
    return q, *packed


def attend(q, k, v, formats, stream, **options):
    group_size, bits = zip(*formats, strict=True)
    options = {"force_fused": True} | options
    return mto.quantized_scaled_dot_product_attention(
        q, k, v, D**-0.5, group_size=group_size, bits=bits, stream=stream, **options
    )


def check(q, k, v, formats, stream, **options):
    out, lse = attend(q, k, v, formats, stream, return_lse=True, **options)
    meaning = Options(D**-0.5, **options)

    decoded = attend(q, k, v, formats, stream, route="mlx", force_fused=False, **options)

    def exact(arithmetic):
        return reference.quantized_scaled_dot_product_attention(
            q, k, v, meaning, formats, arithmetic
        )

    terms = exact(np.float64)[2]
    values = np.abs(reference.decoded(v, formats[1]))
    magnitude = np.matmul(terms.p, terms.spread(values)) + 1e-30
    steps = 0 if q.dtype == mx.float32 else 2.0**-8
    budget = Budget.of(lambda a: exact(a)[0], magnitude, q.dtype, steps * magnitude)
    budget.check(out, "out")
    budget.check(decoded, "decoded to memory first")
    Budget.of(lambda a: exact(a)[1], 10 + np.abs(terms.lse), mx.float32).check(lse, "lse")
