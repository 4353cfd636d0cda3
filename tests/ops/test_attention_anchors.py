"""What MLX 0.32.4 gets wrong, refuses or cannot do in attention: R1 to R3, R5, R18, R19, R28."""

import mlx.core as mx
import numpy as np
import pytest
from affine_cases import random_floats
from tolerance import to_float64

import mlx_tensorops as mto
from mlx_tensorops.reference import scaled_dot_product_attention as reference

KERNELS = ("cpu", "metal")


def operands(seed, shape_q, n_kv_heads, n_k, dtype=mx.float32):
    rng = np.random.default_rng(seed)
    batch, _, _, d = shape_q
    shape = batch, n_kv_heads, n_k, d
    return [random_floats(rng, s, dtype) for s in (shape_q, shape, shape)]


def attend(backend, *arrays, scale=0.125, **options):
    return mto.scaled_dot_product_attention(
        *arrays[:3], scale=scale, force_fused=True, stream=backend.device, **options
    )


def close(actual, expected, rtol=1e-4, atol=2e-6):
    np.testing.assert_allclose(to_float64(actual), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("way", ("segment_ids", "cu_seqlens"))
def test_packed_documents_are_independent(way, backend):
    """R1: values and gradients are those of three calls."""
    arrays, lengths = operands(1, (1, 4, 96, 64), 4, 96), (40, 1, 55)
    ends = np.cumsum((0, *lengths))
    packing = {
        "segment_ids": mx.array(np.repeat(np.arange(3), lengths)[None].astype(np.int32)),
        "cu_seqlens": mx.array(ends.astype(np.int32)),
    }[way]

    def packed(*arrays):
        return attend(backend, *arrays, mask="causal", **{way: packing})

    def apart(*arrays):
        documents = [
            attend(backend, *(a[:, :, begin:end] for a in arrays), mask="causal")
            for begin, end in zip(ends, ends[1:], strict=False)
        ]
        return mx.concatenate(documents, axis=2)

    cotangent = random_floats(np.random.default_rng(2), (1, 4, 96, 64), mx.float32)
    results = [mx.vjp(f, arrays, [cotangent]) for f in (packed, apart)]
    for ours, expected in zip(*([*out, *grads] for out, grads in results), strict=True):
        close(ours, to_float64(expected))


def test_gradient_of_sinks(backend):
    """R2: what the sink takes from the weights, and -sum of p_sink * (d_out . out)."""
    q, k, v = operands(3, (2, 8, 17, 64), 2, 17)
    sinks = mx.array(np.linspace(-2, 2, 8).astype(np.float32))
    cotangent = random_floats(np.random.default_rng(4), (2, 8, 17, 64), mx.float32)

    def run(sinks):
        return attend(backend, q, k, v, mask="causal", sinks=sinks)

    with mx.stream(backend.device):
        (out,), (gradient,) = mx.vjp(run, [sinks], [cotangent])
        rows, lse = attend(
            backend, q, k, mx.ones_like(v), mask="causal", sinks=sinks, return_lse=True
        )
    p_sink = np.exp(to_float64(sinks)[:, None] - to_float64(lse))
    close(rows[..., 0], 1 - p_sink)
    delta = (to_float64(cotangent) * to_float64(out)).sum(-1)
    close(gradient, -(p_sink * delta).sum((0, 2)), atol=1e-4)
    step = 2.0**-6
    for head in (0, 5):
        moved = [sinks + sign * step * (mx.arange(8) == head) for sign in (1, -1)]
        up, down = ((to_float64(run(s)) * to_float64(cotangent)).sum() for s in moved)
        assert abs((up - down) / (2 * step) - gradient[head].item()) < 1e-3 * abs(delta).max()


@pytest.mark.parametrize("n_q", (1, 4, 8))
def test_gradients_of_few_queries(n_q, backend):
    """R3."""
    arrays = operands(5, (1, 4, n_q, 64), 2, 32)
    cotangent = random_floats(np.random.default_rng(6), (1, 4, n_q, 64), mx.float32)
    _, gradients = mx.vjp(lambda *a: attend(backend, *a, mask="causal"), arrays, [cotangent])
    expected = reference.vjp(*arrays, reference.Options(0.125, mask="causal"), cotangent)
    for name, gradient in zip("qkv", gradients, strict=True):
        close(gradient, expected[name])


@pytest.mark.parametrize("width", (1, 7, 128, 500))
def test_windows(width, backend):
    """R5: an explicit mask; and a decoding step sees exactly so many keys."""
    arrays = operands(7, (1, 2, 130, 16), 1, 130)
    distance = mx.arange(130)[:, None] - mx.arange(130)
    explicit = (distance >= 0) & (distance < width)
    ours = attend(backend, *arrays, window=width)
    close(ours, to_float64(attend(backend, *arrays, mask=explicit)))
    if width >= 130:
        close(ours, to_float64(attend(backend, *arrays, mask="causal")))
    q, k = mx.zeros((1, 1, 1, 16)), arrays[1][:, :1]
    seen = attend(backend, q, k, mx.eye(130)[None, None], window=width)[0, 0, 0]
    assert int((seen > 0).sum()) == min(width, 130)


@pytest.mark.parametrize("dtype", (mx.float32, mx.float16, mx.bfloat16), ids=str)
@pytest.mark.parametrize("kind", ("bool", "added"))
def test_rows_without_keys(kind, dtype, backend):
    """R18: nothing comes from them and nothing goes to them."""
    q, k, v = operands(8, (1, 2, 5, 16), 1, 9, dtype)
    seen = mx.array(np.arange(5)[:, None] % 2 + np.zeros(9) > 0)
    mask = seen if kind == "bool" else mx.where(seen, mx.array(0.0), -mx.inf)

    def run(q, k, v, mask):
        return attend(backend, q, k, v, mask=mask, return_lse=True)

    out, lse = run(q, k, v, mask)
    assert mx.all(out[:, :, ::2] == 0).item() and mx.all(lse[:, :, ::2] == -mx.inf).item()
    assert mx.isfinite(out).all().item() and mx.isfinite(lse[:, :, 1::2]).all().item()
    inputs = [q, k, v, *([mask] if kind == "added" else [])]
    function = run if kind == "added" else lambda *a: run(*a, mask)
    cotangents = [mx.ones_like(out), mx.ones_like(lse)]
    _, gradients = mx.vjp(function, inputs, cotangents)
    assert all(mx.isfinite(g).all().item() for g in gradients)
    assert mx.all(gradients[0][:, :, ::2] == 0).item()
    if kind == "added":
        assert mx.all(gradients[3][::2] == 0).item()


def test_large_float16_scores(backend):
    """R19, with gradients."""
    q, k, v = operands(9, (1, 2, 33, 64), 1, 33, mx.float16)
    q, k = 100 * q, 100 * k
    out = attend(backend, q, k, v, mask="causal")
    _, gradients = mx.vjp(
        lambda *a: attend(backend, *a, mask="causal"), [q, k, v], [mx.ones_like(out)]
    )
    for a in (out, *gradients[2:]):
        assert mx.isfinite(a).all().item()
    expected, _ = reference.scaled_dot_product_attention(
        q, k, v, reference.Options(0.125, mask="causal")
    )
    close(out, expected, rtol=2e-3, atol=2e-3)


def test_float32_mask_of_bfloat16_queries(backend):
    """R28."""
    arrays = operands(10, (1, 2, 5, 16), 1, 9, mx.bfloat16)
    mask = random_floats(np.random.default_rng(11), (5, 9), mx.float32)
    out = attend(backend, *arrays, mask=mask)
    assert out.dtype == mx.bfloat16
    options = reference.Options(0.125, mask=mask)
    expected, _ = reference.scaled_dot_product_attention(*arrays, options)
    close(out, expected, rtol=2e-2, atol=1e-2)
