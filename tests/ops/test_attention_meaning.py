"""What each option of attention means, by cases made by hand; the definition against MLX."""

import attention_cases as cases
import mlx.core as mx
import numpy as np
import pytest
from attention_ops import ScaledDotProductAttention
from tolerance import to_float64

import mlx_tensorops as mto
from mlx_tensorops.reference import scaled_dot_product_attention as reference

KERNELS = ("cpu", "metal")


def ids(*values):
    return mx.array([values])


def blocks(*rows):
    return mx.array([[c == "x" for c in row] for row in rows])


# Options, and which keys (columns) each query (row) sees.
SEEN = {
    "all": ({}, ["xxxxx", "xxxxx"]),
    "causal": ({"mask": "causal"}, ["xxx..", "xxxx.", "xxxxx"]),
    "causal, more queries": ({"mask": "causal"}, ["..", "..", "x.", "xx"]),
    "bool": ({"mask": blocks("x.x", "...")}, ["x.x", "..."]),
    "added": ({"mask": mx.array([[0.0, -mx.inf, 0.0], [-mx.inf] * 3])}, ["x.x", "..."]),
    "window": ({"window": 2}, [".xx..", "..xx.", "...xx"]),
    "window of one": ({"window": 1}, ["x..", ".x.", "..x"]),
    "wide window": ({"window": 9}, ["x..", "xx.", "xxx"]),
    "two sides": ({"window": (1, 2)}, [".xxxx", "..xxx", "...xx"]),
    "two sides, causal": ({"window": (1, 2), "mask": "causal"}, [".xx..", "..xx.", "...xx"]),
    "left": ({"window": (0, None)}, ["..xxx", "...xx", "....x"]),
    "right": ({"window": (None, 0)}, ["xxx..", "xxxx.", "xxxxx"]),
    "segments": ({"segment_ids": ids(0, 0, 1, -1)}, ["xx..", "xx..", "..x.", "...."]),
    "mixed segments": ({"segment_ids": ids(1, 0, 1)}, ["x.x", ".x.", "x.x"]),
    "segments, causal": (
        {"segment_ids": ids(1, 0, 1), "mask": "causal"},
        ["x..", ".x.", "x.x"],
    ),
    "two arrays of segments": (
        {"segment_ids": (ids(2, -1, 5), ids(5, 2, 2, -1, 7))},
        [".xx..", ".....", "x...."],
    ),
    "segments far apart": (
        {"segment_ids": (ids(0, 1), ids(0, 0, 1, 1, 1)), "window": 3},
        [".x...", "..xxx"],
    ),
    "documents": ({"cu_seqlens": mx.array([0, 2, 3])}, ["xx.", "xx.", "..x"]),
    "documents, causal": (
        {"cu_seqlens": mx.array([0, 2, 4]), "mask": "causal"},
        ["x...", "xx..", "..x.", "..xx"],
    ),
    "documents of queries and keys": (
        {"cu_seqlens": (mx.array([0, 1, 3]), mx.array([0, 3, 5])), "mask": "causal"},
        ["xxx..", "...x.", "...xx"],
    ),
    "documents, window": (
        {"cu_seqlens": (mx.array([0, 1, 2]), mx.array([0, 3, 5])), "window": 2},
        [".xx..", "...xx"],
    ),
    "fewer keys in a document": (
        {"cu_seqlens": (mx.array([0, 3]), mx.array([0, 2])), "mask": "causal"},
        ["..", "x.", "xx"],
    ),
    "outside of documents": ({"cu_seqlens": mx.array([1, 1, 3])}, ["....", ".xx.", ".xx.", "...."]),
    "no documents": ({"cu_seqlens": mx.array([0])}, ["..", ".."]),
    "block mask": (
        {"block_mask": blocks("x.", ".x"), "block_size": (2, 3)},
        ["xxx..", "xxx..", "...xx"],
    ),
    "block mask, causal": (
        {"block_mask": blocks("x.", ".x"), "block_size": (2, 2), "mask": "causal"},
        ["x...", "xx..", "..x.", "..xx"],
    ),
}


def by_definition(q, k, v, options, device):
    return reference.scaled_dot_product_attention(q, k, v, reference.Options(1.0, **options))


def by_kernel(q, k, v, options, device):
    outputs = mto.scaled_dot_product_attention(
        q, k, v, scale=1.0, return_lse=True, force_fused=True, stream=device, **options
    )
    return map(to_float64, outputs)


def by_graph(q, k, v, options, device):
    outputs = mto.scaled_dot_product_attention(
        q, k, v, scale=1.0, return_lse=True, route="mlx", stream=device, **options
    )
    return map(to_float64, outputs)


WAYS = (by_definition, by_kernel, by_graph)
EVERY_WAY = pytest.mark.parametrize("attend", WAYS, ids=lambda way: way.__name__)


@EVERY_WAY
@pytest.mark.parametrize("name", SEEN)
def test_visible_keys(name, attend, backend):
    """Equal scores: the output is the mean of the values that are seen."""
    options, rows = SEEN[name]
    seen = np.array([[c == "x" for c in row] for row in rows])
    n_q, n_k = seen.shape
    q, k = mx.zeros((1, 1, n_q, 8)), mx.zeros((1, 1, n_k, 8))
    out, lse = attend(q, k, mx.eye(n_k)[None, None], options, backend.device)
    n = seen.sum(-1)
    np.testing.assert_allclose(out[0, 0], seen / np.maximum(n, 1)[:, None], atol=1e-6)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(lse[0, 0], np.log(n), atol=1e-6)


@EVERY_WAY
def test_order_of_the_steps(attend, backend):
    """Capped first, then alibi and the mask are added; the sink is taken as it is."""
    options = {
        "softcap": 3.0,
        "alibi": mx.array([0.25]),
        "sinks": mx.array([5.0]),
        "mask": mx.array([[0.5, -0.5]]),
    }
    q, k = mx.full((1, 1, 1, 4), 0.5), mx.ones((1, 1, 2, 4))
    out, lse = attend(q, k, mx.array([[[[1.0], [10.0]]]]), options, backend.device)
    scores = 3 * np.tanh(2 / 3) + np.array([0.5 - 0.25, -0.5, np.inf])
    scores[2] = 5.0
    weights = np.exp(scores)
    np.testing.assert_allclose(lse[0, 0, 0], np.log(weights.sum()), rtol=1e-6)
    expected = (weights[0] + 10 * weights[1]) / weights.sum()
    np.testing.assert_allclose(out[0, 0, 0, 0], expected, rtol=1e-6)


@EVERY_WAY
def test_alibi_on_both_sides(attend, backend):
    """The distance counts to either side, from the aligned position."""
    q, k, v = mx.zeros((1, 2, 2, 4)), mx.zeros((1, 1, 4, 4)), mx.eye(4)[None, None]
    out, _ = attend(q, k, v, {"alibi": mx.array([0.0, 1.0])}, backend.device)
    np.testing.assert_allclose(out[0, 0], np.full((2, 4), 0.25), atol=1e-6)
    weights = np.exp(-np.array([[2.0, 1, 0, 1], [3, 2, 1, 0]]))
    np.testing.assert_allclose(out[0, 1], weights / weights.sum(-1, keepdims=True), rtol=1e-5)


@EVERY_WAY
def test_sinks_of_rows_without_keys(attend, backend):
    q, v = mx.zeros((1, 2, 1, 4)), mx.ones((1, 1, 3, 4))
    sinks = mx.array([1.5, -mx.inf])
    for mask in (mx.zeros((1, 3), mx.bool_), mx.full((1, 3), -mx.inf)):
        out, lse = attend(q, v, v, {"mask": mask, "sinks": sinks}, backend.device)
        assert not np.any(out)
        np.testing.assert_array_equal(lse[0, :, 0], [1.5, -np.inf])


@EVERY_WAY
@pytest.mark.parametrize("ends", ([0, 3, 2], [-1, 2], [0, 5], [3, 0]), ids=str)
def test_bad_documents_give_nan(ends, attend, backend):
    q, k = mx.zeros((1, 1, 4, 4)), mx.zeros((1, 1, 4, 4))
    good = mx.array([0] * (len(ends) - 1) + [4])
    for pair in ((mx.array(ends), good), (good, mx.array(ends))):
        for result in attend(q, k, k, {"cu_seqlens": pair}, backend.device):
            assert np.isnan(result).all()


OF_MLX = ("causal", "bool mask", "added", "added a head", "sinks")


@pytest.mark.parametrize("name", OF_MLX)
def test_definition_against_mlx(name):
    """Where MLX's op knows the option, and each row sees a key."""
    case = cases.PLAIN.with_options(name)
    op = ScaledDotProductAttention(case)
    arrays = op.arrays(case)
    options = op.options(case, arrays)
    known = {key: options[key] for key in ("scale", "mask", "sinks")}
    q, k, v = arrays[:3]
    if isinstance(known["mask"], mx.array):
        known["mask"] = known["mask"].astype(
            mx.bool_ if case.mask == "bool" else mx.float32, stream=mx.cpu
        )
    theirs = mx.fast.scaled_dot_product_attention(q, k, v, **known, stream=mx.cpu)
    ours, lse = reference.scaled_dot_product_attention(q, k, v, reference.Options(**options))
    seen = ~np.isinf(lse)
    assert seen.any()
    np.testing.assert_allclose(to_float64(theirs)[seen], ours[seen], rtol=2e-5, atol=2e-6)


def on_a_grid(array):
    """Floats whose sums with small steps float32 holds exactly."""
    if array.dtype == mx.bool_ or not mx.issubdtype(array.dtype, mx.floating):
        return array
    return (mx.round(array.astype(mx.float32) * 1024) / 1024).astype(mx.float32)


DERIVED = cases.single_cases() + cases.further_cases()[-1:]


@pytest.mark.parametrize("case", DERIVED, ids=str)
def test_derivatives_of_the_definition(case):
    """Differences of fourth order along random directions; and that vjp and jvp are adjoint."""
    op = ScaledDotProductAttention(case)
    arrays = [on_a_grid(a) for a in op.arrays(case)]
    names, rng = op.names(), case.rng(9)
    direction = {
        name: mx.array(rng.integers(-2, 3, arrays[i].shape).astype(np.float32))
        for name, i in zip(names, op.differentiable, strict=True)
    }

    def outputs(step):
        moved = list(arrays)
        for name, i in zip(names, op.differentiable, strict=True):
            moved[i] = arrays[i] + step * direction[name]
        options = reference.Options(**op.options(case, moved))
        out, lse = reference.scaled_dot_product_attention(*moved[:3], options)
        return out, np.where(np.isinf(lse), 0, lse)

    h = 2.0**-10
    near, far = (
        [a - b for a, b in zip(outputs(n * h), outputs(-n * h), strict=True)] for n in (1, 2)
    )
    options = reference.Options(**op.options(case, arrays))
    tangents = reference.jvp(*arrays[:3], options, direction)
    for a, b, tangent in zip(near, far, tangents, strict=True):
        np.testing.assert_allclose((8 * a - b) / (12 * h), tangent, rtol=1e-4, atol=1e-5)

    d_out, d_lse = (mx.array(rng.standard_normal(t.shape).astype(np.float32)) for t in tangents)
    gradients = reference.vjp(*arrays[:3], options, d_out, d_lse)
    forward = sum((to_float64(c) * t).sum() for c, t in zip((d_out, d_lse), tangents, strict=True))
    backward = sum((gradients[name] * to_float64(direction[name])).sum() for name in names)
    np.testing.assert_allclose(forward, backward, rtol=1e-9)
