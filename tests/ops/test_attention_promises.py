"""scaled_dot_product_attention: what it promises beside the values of single calls."""

import attention_cases as cases
import mlx.core as mx
import numpy as np
import pytest
from attention_ops import ScaledDotProductAttention, operands
from tolerance import assert_same_bits, bits_of, to_float64

import mlx_tensorops as mto
from mlx_tensorops import _ext
from mlx_tensorops.reference import scaled_dot_product_attention as reference

KERNELS = ("cpu", "metal")
attend = mto.scaled_dot_product_attention


@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
def test_the_shapes_follow_the_inputs(backward, backend):
    """R16: a function compiled for any shape masks each length anew."""

    def causal(q, k, v):
        return attend(q, k, v, scale=0.25, mask="causal", window=6, stream=backend.device)

    def gradients(q, k, v):
        return mx.grad(lambda *a: mx.square(causal(*a)).sum(), argnums=(0, 1, 2))(q, k, v)

    def as_list(*a):
        return gradients(*a) if backward else [causal(*a)]

    compiled = mx.compile(as_list, shapeless=True)
    for n_q, n_k in ((8, 8), (4, 4), (1, 8), (9, 5)):
        arrays = operands(2, n_q, n_k)
        for a, b in zip(compiled(*arrays), as_list(*arrays), strict=True):
            np.testing.assert_allclose(to_float64(a), to_float64(b), rtol=1e-5, atol=1e-6)


def test_the_graph_follows_the_shapes(backend):
    """What no kernel covers, too."""

    def graph(q, k, v):
        options = {"scale": 0.25, "mask": "causal", "window": (3, 1), "alibi": mx.ones((4,))}
        return attend(q, k, v, **options, route="mlx", stream=backend.device)

    compiled = mx.compile(graph, shapeless=True)
    for n_q, n_k in ((8, 8), (4, 4), (1, 8), (9, 5)):
        arrays = operands(3, n_q, n_k)
        np.testing.assert_allclose(compiled(*arrays), graph(*arrays), rtol=1e-5, atol=1e-6)


@pytest.mark.kernels("cpu")  # Metal promises it within its kernels for few rows
def test_rows_do_not_depend_on_their_number(backend):
    """Each row alone, and as one of any number of rows, heads and batches: the same bits."""
    for dtype in (mx.float32, mx.bfloat16, mx.float16):
        q, k, v = operands(4, 70, 600, dtype, heads=(4, 1), d=40)
        whole = attend(q, k, v, scale=0.2, return_lse=True, stream=backend.device)
        for n_rows in (1, 2, 7, 33):
            rows = slice(11, 11 + n_rows)
            some = attend(q[:, :, rows], k, v, scale=0.2, return_lse=True, stream=backend.device)
            for a, b in zip(some, whole, strict=True):
                assert_same_bits(a, b[:, :, rows], f"{n_rows} rows of {dtype}")
        head = attend(q[1:, 2:3], k[1:], v[1:], scale=0.2, stream=backend.device)
        assert_same_bits(head, whole[0][1:, 2:3], "one head")


def test_threads_do_not_change_bits(backend, threads):
    case = cases.AttentionCase(
        n_q=70, n_k=300, mask="float32", mask_axes="HK", window=(99, 9), sinks=True, lse=True
    )
    op = ScaledDotProductAttention(case)
    arrays = op.arrays(case)

    def run():
        outputs = op.call(case, arrays, backend.device)
        ones = [mx.ones_like(o) for o in outputs]
        _, gradients = mx.vjp(lambda *a: op.call(case, a, backend.device), arrays, ones)
        return [bits_of(a) for a in [*outputs, *gradients]]

    threads(1)
    alone = run()
    for n in (2, 3, 5):
        threads(n)
        for a, b in zip(run(), alone, strict=True):
            assert np.array_equal(a, b), f"{n} threads"


DTYPES = (mx.float32, mx.float16, mx.bfloat16)


@pytest.mark.parametrize("of_q", DTYPES, ids=str)
@pytest.mark.parametrize("of_k", DTYPES, ids=str)
def test_dtypes_that_differ(of_q, of_k, backend):
    """The result type, and each gradient in the dtype of its input (R28 with masks)."""
    q, k, v = operands(5)
    q, k, mask = q.astype(of_q), k.astype(of_k), mx.ones((9, 33), mx.float32)

    def run(*a):
        options = {"mask": a[3], "sinks": mx.ones((4,)), "force_fused": True}
        return attend(*a[:3], scale=1.0, **options, stream=backend.device)

    out = run(q, k, v.astype(of_k), mask)
    assert out.dtype == mx.result_type(q, k)
    primals = [q, k, v.astype(of_k), mask]
    _, gradients = mx.vjp(run, primals, [mx.ones_like(out)])
    assert [g.dtype for g in gradients] == [a.dtype for a in primals]


def test_one_array_of_segments(backend):
    q, k, v = operands(6, 12, 12)
    ids = mx.array([[0] * 5 + [3] * 7, [0] * 12])
    one = attend(q, k, v, scale=1.0, segment_ids=ids, mask="causal", stream=backend.device)
    for dtype in (mx.int8, mx.uint8, mx.int64, mx.uint32, mx.uint64):
        pair = (ids.astype(dtype), ids)
        two = attend(q, k, v, scale=1.0, segment_ids=pair, mask="causal", stream=backend.device)
        assert_same_bits(two, one, str(dtype))


def test_wide_integers_stay_what_they_are(backend):
    """A negative id of 64 bits is padding, a document's end beyond 32 bits is bad."""
    q, k, v = operands(7, 4, 4, batch=1)
    ids = mx.array([[0, 0, -(2**40), 1]], mx.int64)
    out, lse = attend(q, k, v, scale=1.0, segment_ids=ids, return_lse=True, stream=backend.device)
    assert mx.isinf(lse[0, :, 2]).all().item() and mx.isfinite(lse[0, :, 3]).all().item()
    ends = mx.array([0, 2**32 + 2], mx.int64)
    assert mx.isnan(attend(q, k, v, scale=1.0, cu_seqlens=ends, stream=backend.device)).all().item()


def test_documents_are_not_mapped():
    q, k, v = operands(8, 4, 4, batch=1)
    ends = mx.array([[0, 2, 4], [0, 1, 4]])

    def run(ends):
        return attend(q, k, v, scale=1.0, cu_seqlens=ends, stream=mx.cpu)

    with pytest.raises(ValueError, match="cu_seqlens must not be mapped by vmap"):
        mx.eval(mx.vmap(run)(ends))


def test_other_dtypes_and_wide_heads_take_the_graph():
    _ext.reset_counters()
    q, k, v = operands(9, d=600)
    wide = attend(q, k, v, scale=0.04, window=3, stream=mx.cpu)
    expected, _ = reference.scaled_dot_product_attention(q, k, v, reference.Options(0.04, window=3))
    np.testing.assert_allclose(to_float64(wide), expected, rtol=1e-4, atol=1e-5)
    q, k, v = (a.astype(mx.float64, stream=mx.cpu) for a in operands(9))
    exact = attend(q, k, v, scale=0.25, softcap=2.0, sinks=mx.ones((4,)), stream=mx.cpu)
    assert exact.dtype == mx.float64
    options = reference.Options(0.25, softcap=2.0, sinks=mx.ones((4,)))
    expected, _ = reference.scaled_dot_product_attention(*operands(9), options)
    # MLX's exp of float64 has float32's digits.
    np.testing.assert_allclose(np.array(exact), expected, rtol=1e-4, atol=1e-7)
    outcomes = {outcome for _, _, outcome, _ in _ext.counters()}
    assert outcomes == {"head dimension 600", "q, k and v of dtype float64"}


@pytest.mark.parametrize("mask", ("bool", "float32"))
def test_route_mlx_has_our_meaning_of_rows_without_keys(mask):
    q, k, v = operands(10, 3, 5)
    seen = mx.array([[True] * 5, [False] * 5, [True, False] * 2 + [True]])
    given = seen if mask == "bool" else mx.where(seen, mx.array(0.5), -mx.inf)

    def run(route):
        def out(*a):
            return attend(*a, scale=0.3, mask=given, route=route, stream=mx.cpu)

        value = out(q, k, v)
        return [value, *mx.vjp(out, [q, k, v], [mx.ones_like(value)])[1]]

    for a, b in zip(run("mlx"), run("ours"), strict=True):
        np.testing.assert_allclose(to_float64(a), to_float64(b), rtol=1e-4, atol=1e-5)


SECOND_ORDER = [
    cases.AttentionCase(n_q=5, n_k=7, d=(4, 4), heads=(2, 1), sinks=True, lse=True, mask="causal"),
    cases.AttentionCase(
        n_q=5,
        n_k=7,
        d=(4, 4),
        heads=(2, 1),
        alibi=True,
        softcap=2.0,
        mask="float32",
        mask_axes="QK",
    ),
]


@pytest.mark.parametrize("case", SECOND_ORDER, ids=str)
def test_second_order(case, backend):
    """The derivative of the gradients along a direction, and its adjoint."""
    op = ScaledDotProductAttention(case)
    arrays = op.arrays(case)
    positions = op.differentiable
    names = op.names()
    rng = case.rng(3)
    outputs = op.call(case, arrays, backend.device)
    cotangents = [mx.array(rng.standard_normal(o.shape).astype(np.float32)) for o in outputs]
    steps = [mx.array(rng.integers(-2, 3, arrays[i].shape).astype(np.float32)) for i in positions]

    def gradients(*values):
        moved = list(arrays)
        for i, value in zip(positions, values, strict=True):
            moved[i] = value
        call = lambda *a: op.call(case, a, backend.device)  # noqa: E731
        return [g for i, g in enumerate(mx.vjp(call, moved, cotangents)[1]) if i in positions]

    primals = [arrays[i] for i in positions]
    _, along = mx.jvp(gradients, primals, steps)

    def exact(step):
        moved = list(arrays)
        for i, direction in zip(positions, steps, strict=True):
            moved[i] = arrays[i] + step * direction
        options = reference.Options(**op.options(case, moved))
        found = reference.vjp(*moved[:3], options, *cotangents)
        return [found[name] for name in names]

    h = 2.0**-6
    near, far = ([a - b for a, b in zip(exact(n * h), exact(-n * h), strict=True)] for n in (1, 2))
    for name, a, b, tangent in zip(names, near, far, along, strict=True):
        difference = (8 * a - b) / (12 * h)
        scale = np.abs(difference).max()
        np.testing.assert_allclose(to_float64(tangent), difference, atol=2e-3 * scale, err_msg=name)

    vectors = [mx.array(rng.standard_normal(a.shape).astype(np.float32)) for a in along]
    _, back = mx.vjp(gradients, primals, vectors)
    forward = sum(
        (to_float64(a) * to_float64(b)).sum() for a, b in zip(vectors, along, strict=True)
    )
    backward = sum((to_float64(a) * to_float64(b)).sum() for a, b in zip(back, steps, strict=True))
    np.testing.assert_allclose(forward, backward, rtol=1e-3, atol=1e-3)
