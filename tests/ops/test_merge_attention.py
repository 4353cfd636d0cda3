"""merge_attention: parts of the keys give what all of them give, with gradients."""

import mlx.core as mx
import numpy as np
import pytest
from tolerance import Budget, to_float64

import mlx_tensorops as mto
from mlx_tensorops.reference import merge_attention as reference

KERNELS = ("cpu",)
SCALE = 16**-0.5


def operands(seed, n_k=41, dtype=mx.float32):
    rng = np.random.default_rng(seed)
    shapes = (2, 4, 9, 16), (2, 2, n_k, 16), (2, 2, n_k, 24)
    return [mx.array(rng.standard_normal(s).astype(np.float32)).astype(dtype) for s in shapes]


def attend(q, k, v, **options):
    return mto.scaled_dot_product_attention(q, k, v, scale=SCALE, return_lse=True, **options)


def merged(q, k, v, ends=(0, 17, 18, 41), sinks=None):
    parts = [
        attend(q, k[:, :, a:b], v[:, :, a:b], sinks=None if a else sinks)
        for a, b in zip(ends, ends[1:], strict=False)
    ]
    return mto.merge_attention(*zip(*parts, strict=True))


@pytest.mark.parametrize("sinks", (None, mx.array([0.5, -1.0, 2.0, 0.0])), ids=("", "sinks"))
def test_parts_of_the_keys_give_the_whole(backend, sinks):
    """R8."""
    q, k, v = operands(1)
    with mx.stream(backend.device):
        for a, b in zip(merged(q, k, v, sinks=sinks), attend(q, k, v, sinks=sinks), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", (mx.float32, mx.float16, mx.bfloat16), ids=str)
def test_definition(backend, dtype):
    rng = np.random.default_rng(2)
    outs = [mx.array(rng.standard_normal((3, 5, 8)).astype(np.float32)) for _ in range(4)]
    outs = [out.astype(dtype) for out in outs]
    lses = [mx.array(10 * rng.standard_normal((3, 5)).astype(np.float32)) for _ in range(4)]
    lses[0][0] = -mx.inf
    out, lse = mto.merge_attention(outs, lses, stream=backend.device)
    absolute = [mx.abs(out) for out in outs]
    magnitudes = (
        reference.merge_attention(absolute, lses)[0],
        sum(np.abs(np.nan_to_num(to_float64(a), neginf=0)) for a in lses),
    )
    for i, actual in enumerate((out, lse)):
        budget = Budget.of(
            lambda a, i=i: reference.merge_attention(outs, lses, a)[i],
            magnitudes[i],
            (dtype, mx.float32)[i],
        )
        budget.check(actual, ("out", "lse")[i])


def test_rows_without_keys(backend):
    outs, lses = [mx.ones((2, 3)), mx.ones((2, 3))], [mx.full((2,), -mx.inf)] * 2
    lses[1] = mx.array([0.5, -mx.inf])
    out, lse = mto.merge_attention(outs, lses, stream=backend.device)
    assert out.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert lse.tolist() == [0.5, -mx.inf]

    def total(*arrays):
        out, lse = mto.merge_attention(arrays[:2], arrays[2:], stream=backend.device)
        return out.sum() + mx.where(mx.isinf(lse), 0, lse).sum()

    for gradient in mx.grad(total, argnums=(0, 1, 2, 3))(*outs, *lses):
        assert mx.isfinite(gradient).all().item()


def test_gradients_are_those_of_the_whole(backend):
    q, k, v = operands(3)
    rng = np.random.default_rng(4)
    d_out = mx.array(rng.standard_normal((2, 4, 9, 24)).astype(np.float32))
    d_lse = mx.array(rng.standard_normal((2, 4, 9)).astype(np.float32))
    with mx.stream(backend.device):
        _, whole = mx.vjp(attend, [q, k, v], [d_out, d_lse])
        _, parts = mx.vjp(merged, [q, k, v], [d_out, d_lse])
        for a, b in zip(parts, whole, strict=True):
            np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-4, atol=2e-6)


OUT, LSE = mx.zeros((2, 3, 4)), mx.zeros((2, 3))
BAD_INPUTS = {
    "nothing": (([], []), "outs must have at least one array, got none."),
    "more outs": (([OUT, OUT], [LSE]), "lses must be as many as outs, 2, got 1."),
    "shapes": (
        ([OUT, OUT[:1]], [LSE, LSE]),
        "outs must have one shape, (2, 3, 4), got (1, 3, 4).",
    ),
    "rows": (([OUT], [LSE[0]]), "lses must have the shape of the rows of outs, (2, 3), got (3,)."),
    "integers": (([OUT.astype(mx.int32)], [LSE]), "outs must have a floating dtype, got int32."),
    "integer lse": (([OUT], [LSE.astype(mx.int32)]), "lses must have a floating dtype, got int32."),
    "scalar": (([mx.array(1.0)], [LSE]), "outs must have at least 1 dimension, got a scalar."),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input(name):
    arguments, message = BAD_INPUTS[name]
    with pytest.raises(ValueError) as error:
        mto.merge_attention(*arguments)
    assert str(error.value) == f"[merge_attention] {message}"
