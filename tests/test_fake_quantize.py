"""fake_quantize: the values of a round trip, and a gradient that passes straight."""

import mlx.core as mx
import numpy as np
import pytest
from tolerance import assert_same_bits

import mlx_tensorops as mto

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
# Mode, and the options of the call.
FORMS = [
    ("affine", {}),
    ("affine", {"group_size": 32, "bits": 2}),
    ("affine", {"group_size": 128, "bits": 8}),
    ("mxfp4", {}),
    ("mxfp8", {}),
    ("nvfp4", {}),
    ("nvfp4", {"global_scale": mx.array(3.7)}),
    ("mxfp6_e2m3", {}),
    ("mxfp6_e3m2", {}),
    ("mxint8", {}),
    ("int2_e8m0", {}),
    ("int4_e8m0", {}),
    ("int8_e8m0", {}),
    ("fp8_e4m3", {}),
    ("fp8_e5m2", {"group_size": (1, 128)}),
    ("nf4", {}),
    ("bnb_fp4", {"group_size": 128}),
    ("ternary", {}),
    ("bitnet", {}),
]
IDS = [f"{mode}-{i}" for i, (mode, _) in enumerate(FORMS)]


def values(dtype=mx.float32, shape=(8, 256), seed=0):
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(shape).astype(np.float32)
    w[..., 5], w[..., 6] = 0.0, -0.0
    return mx.array(w).astype(dtype)


def round_trip(w, mode, options):
    group_size, bits = options.get("group_size"), options.get("bits")
    factor = options.get("global_scale")
    packed = mto.quantize(w, group_size, bits, mode, global_scale=factor)
    w_q, scales, biases = (*packed, None)[:3]
    return mto.dequantize(w_q, scales, biases, group_size, bits, mode, factor, w.dtype)


@pytest.mark.parametrize(("mode", "options"), FORMS, ids=IDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_those_of_a_round_trip(mode, options, dtype):
    w = values(dtype)
    y = mto.fake_quantize(w, mode, **options)
    assert y.dtype == dtype
    assert_same_bits(y, round_trip(w, mode, options), mode)
    assert not mx.array_equal(y, w)


@pytest.mark.parametrize(("mode", "options"), FORMS, ids=IDS)
def test_gradient_is_straight(mode, options):
    w, cotangent = values(), values(seed=1)

    def loss(w):
        return (mto.fake_quantize(w, mode, clip=False, **options) * cotangent).sum()

    assert_same_bits(mx.grad(loss)(w), cotangent, "gradient")
    assert_same_bits(mx.compile(mx.grad(loss))(w), cotangent, "compiled")
    _, (tangent,) = mx.jvp(
        lambda w: mto.fake_quantize(w, mode, clip=False, **options), [w], [cotangent]
    )
    np.testing.assert_array_equal(np.array(tangent), np.array(cotangent))


@pytest.mark.parametrize(("mode", "options"), FORMS, ids=IDS)
def test_vmap_is_stacking(mode, options):
    stack = mx.stack([values(seed=i) for i in range(3)])
    mapped = mx.vmap(lambda w: mto.fake_quantize(w, mode, **options))(stack)
    alone = mx.stack([mto.fake_quantize(w, mode, **options) for w in stack])
    assert_same_bits(mapped, alone, mode)


def test_clipped_values_have_no_gradient():
    """nvfp4 cannot reach past 7 times its greatest scale."""
    w = mx.array(np.float32([[3000, -3000, 3200, -3200, 1, 0] + [0] * 26]))

    def grad(clip):
        return mx.grad(lambda w: mto.fake_quantize(w, "nvfp4", clip=clip).sum())(w)

    assert grad(True)[0, :6].tolist() == [1, 1, 0, 0, 1, 1]
    assert grad(False)[0, :6].tolist() == [1] * 6


def test_ternary_weights_are_clipped_beyond_half_a_step():
    w = mx.array(np.float32([[3, -3, 1, -1, 0.1, -0.1, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]]))
    gradient = mx.grad(lambda w: mto.fake_quantize(w, "ternary").sum())(w)
    # The scales are 1.025 and 1.
    assert gradient.tolist() == [[0, 0, 1, 1, 1, 1, 1, 1], [1] * 8]
    gradient = mx.grad(lambda w: mto.fake_quantize(w, "ternary", clip=False).sum())(w)
    assert gradient.tolist() == [[1] * 8] * 2


def test_what_is_not_finite_has_no_gradient():
    w = values(mx.float32)
    w[0, 0], w[1, 0] = mx.inf, mx.nan
    gradient = mx.grad(lambda w: mx.nan_to_num(mto.fake_quantize(w, "mxfp4")).sum())(w)
    assert mx.isfinite(gradient).all() and gradient[:2, 0].tolist() == [0, 0]


def test_training_moves_codes():
    """A layer that is trained through 4 bits fits better than the rounding of the best weights."""
    rng = np.random.default_rng(0)
    x = mx.array(rng.standard_normal((256, 64)).astype(np.float32) @ rng.standard_normal((64, 64)))
    x = x.astype(mx.float32)
    best = mx.array(rng.standard_normal((4, 64)).astype(np.float32))
    y = x @ best.T

    def loss(w):
        return mx.square(x @ mto.fake_quantize(w, "affine", 64, 3).T - y).mean()

    w, start = best, loss(best).item()
    step = mx.compile(mx.value_and_grad(loss))
    lowest = start
    for _ in range(200):
        value, gradient = step(w)
        lowest = min(lowest, value.item())
        w = w - 2e-5 * gradient
    assert lowest < 0.8 * start


@pytest.mark.parametrize("w", [None, 3.0, np.ones((2, 64), np.float32)])
def test_no_array(w):
    with pytest.raises(ValueError, match=r"\[fake_quantize\] w must be an array, got "):
        mto.fake_quantize(w)


def test_errors_are_those_of_quantize():
    with pytest.raises(ValueError, match="mode must be one of"):
        mto.fake_quantize(values(), "int5")
    with pytest.raises(ValueError, match="bits must be one of"):
        mto.fake_quantize(values(), bits=9)
