"""quantized_scaled_dot_product_attention: attention on the decoded keys and values."""

import itertools

import mlx.core as mx
import numpy as np
import pytest
from affine_cases import DTYPES, random_floats
from packed_attention import D_V, FORMATS, D, attend, check, operands
from signatures import positional_parameters
from tolerance import bits_of, to_float64

import mlx_tensorops as mto

KERNELS = ("cpu", "metal")
MODES = ("affine", "mxfp4", "mxfp8", "nvfp4")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "formats", list(zip(FORMATS, FORMATS[1:] + FORMATS[:1], strict=True)), ids=str
)
def test_formats_of_keys_and_values(formats, dtype, backend):
    for n_q in (1, 5):
        check(*operands(1, n_q, 67, formats, dtype), formats, backend.device, mask="causal")


@pytest.mark.parametrize("formats", list(zip(FORMATS[1:] + FORMATS[:1], FORMATS, strict=True)))
def test_formats_of_many_queries(formats, backend):
    dtype = DTYPES[FORMATS.index(formats[1]) % 3]
    check(*operands(2, 35, 67, formats, dtype), formats, backend.device, mask="causal")


@pytest.mark.parametrize("n_q", (1, 5, 37))
@pytest.mark.parametrize("kind", ("bool", "float32"))
def test_masks(n_q, kind, backend):
    """R4: every shape of mask, and the query is what it was."""
    formats = ((64, 8), (64, 4))
    q, k, v = operands(2, n_q, 37, formats, batch=2)
    before, rng = bits_of(q), np.random.default_rng(3)
    for shape in ((n_q, 37), (2, 1, n_q, 37), (2, 8, n_q, 37)):
        mask = mx.array(rng.random(shape) < 0.8)
        mask = mask if kind == "bool" else mx.where(mask, mx.array(0.5), -mx.inf)
        check(q, k, v, formats, backend.device, mask=mask)
    assert np.array_equal(bits_of(q), before)


def test_other_options(backend):
    formats = ((64, 8), (32, 4))
    q, k, v = operands(4, 9, 40, formats)
    sinks, alibi = mx.arange(8) / 4 - 1, mx.arange(8) / 40
    ids = mx.array([[1] * 4 + [2] * 5]), mx.array([[1] * 11 + [2] * 29])
    for options in (
        {"sinks": sinks, "window": 7},
        {"softcap": 2.0, "alibi": alibi},
        {"segment_ids": ids, "mask": "causal"},
        {"cu_seqlens": (mx.array([0, 2, 9]), mx.array([0, 30, 40])), "window": (4, 1)},
        {"block_mask": mx.array([[True, False, True]]), "block_size": (16, 16)},
    ):
        check(q, k, v, formats, backend.device, **options)


@pytest.mark.parametrize("modes", list(itertools.permutations(MODES, 2)))
@pytest.mark.parametrize("n_q", (3, 40))
def test_other_modes(modes, n_q, backend):
    """Against MLX's decoding; keys and values need not be of one mode."""
    rng = np.random.default_rng(5)
    q = random_floats(rng, (1, 4, n_q, 64), mx.float32)
    dense = [random_floats(rng, (1, 2, 45, 64), mx.float32) for _ in modes]
    packed = [mx.quantize(a, mode=m, stream=mx.cpu) for a, m in zip(dense, modes, strict=True)]
    decoded = [
        mx.dequantize(*arrays, mode=m, stream=mx.cpu, dtype=mx.float32)
        for arrays, m in zip(packed, modes, strict=True)
    ]
    options = {"mask": "causal", "force_fused": True}
    with mx.stream(backend.device):
        ours = mto.quantized_scaled_dot_product_attention(
            q, *packed, 0.125, group_size=None, bits=None, mode=modes, **options
        )
        dense = mto.scaled_dot_product_attention(q, *decoded, scale=0.125, mask="causal")
    np.testing.assert_allclose(to_float64(ours), to_float64(dense), rtol=1e-5, atol=2e-6)


def test_groups_of_16_that_fill_no_tile(backend):
    """80 columns of nvfp4, few queries and many."""
    rng = np.random.default_rng(6)
    k, v = (random_floats(rng, (1, 2, 70, 80), mx.float32) for _ in range(2))
    k, v = (mx.quantize(a, mode="nvfp4", stream=mx.cpu) for a in (k, v))
    decoded = [mx.dequantize(*a, mode="nvfp4", stream=mx.cpu, dtype=mx.float32) for a in (k, v)]
    for n_q in (1, 40):
        q = random_floats(rng, (1, 4, n_q, 80), mx.float32)
        ours = mto.quantized_scaled_dot_product_attention(
            q, k, v, 0.1, None, None, None, "nvfp4", force_fused=True, stream=backend.device
        )
        dense = mto.scaled_dot_product_attention(q, *decoded, scale=0.1, stream=backend.device)
        np.testing.assert_allclose(to_float64(ours), to_float64(dense), rtol=1e-5, atol=2e-6)


def test_gradients(backend):
    """Those of q, scales and biases are those of decoding and attending."""
    formats = ((64, 4), (32, 8))
    q, k, v = operands(6, 6, 21, formats)

    def packed(q, k_scales, k_biases, v_scales, v_biases):
        keys, values = (k[0], k_scales, k_biases), (v[0], v_scales, v_biases)
        return attend(q, keys, values, formats, backend.device, mask="causal")

    def decoded(q, k_scales, k_biases, v_scales, v_biases):
        keys = mto.dequantize(k[0], k_scales, k_biases, *formats[0], stream=backend.device)
        values = mto.dequantize(v[0], v_scales, v_biases, *formats[1], stream=backend.device)
        options = {"scale": D**-0.5, "mask": "causal", "stream": backend.device}
        return mto.scaled_dot_product_attention(q, keys, values, **options)

    inputs = [q, *k[1:], *v[1:]]
    cotangent = random_floats(np.random.default_rng(7), (1, 8, 6, D_V), mx.float32)
    for a, b in zip(
        mx.vjp(packed, inputs, [cotangent])[1], mx.vjp(decoded, inputs, [cotangent])[1], strict=True
    ):
        # Sums of many terms: they are as far off as the largest.
        atol = 1e-6 * float(mx.abs(b).max())
        np.testing.assert_allclose(to_float64(a), to_float64(b), rtol=1e-5, atol=atol)


def test_vmap(backend):
    formats = ((64, 8), (64, 8))
    calls = [operands(seed, 3, 11, formats) for seed in (8, 9)]

    def run(q, *arrays):
        return attend(q, arrays[:3], arrays[3:], formats, backend.device, mask="causal")

    flat = [(q, *k, *v) for q, k, v in calls]
    stacked = [mx.stack(column) for column in zip(*flat, strict=True)]
    mapped = mx.vmap(run)(*stacked)
    for i, arrays in enumerate(flat):
        np.testing.assert_array_equal(np.array(mapped[i]), np.array(run(*arrays)))
    # Over the scales of the keys alone, and over the queries alone.
    for position in (2, 0):
        arrays, in_axes = list(flat[0]), [None] * 7
        arrays[position], in_axes[position] = stacked[position], 0
        mapped = mx.vmap(run, in_axes=tuple(in_axes))(*arrays)
        for i in range(2):
            arrays[position] = flat[i][position]
            np.testing.assert_array_equal(np.array(mapped[i]), np.array(run(*arrays)))

    def gradient(*arrays):
        return mx.grad(lambda scales: run(*arrays[:2], scales, *arrays[3:]).sum())(arrays[2])

    mapped = mx.vmap(gradient, in_axes=(None, None, 0, *[None] * 4))(
        *flat[0][:2], stacked[2], *flat[0][3:]
    )
    for i in range(2):
        alone = gradient(*flat[0][:2], flat[i][2], *flat[0][3:])
        np.testing.assert_allclose(np.array(mapped[i]), np.array(alone), rtol=1e-5, atol=1e-6)


def test_slices_of_a_cache(backend):
    """The first keys of longer arrays, as a growing cache hands them out."""
    formats = ((64, 8), (64, 4))
    q, k, v = operands(11, 2, 70, formats)
    short = [[a[:, :, :41] for a in arrays] for arrays in (k, v)]
    dense = [[mx.contiguous(a) for a in arrays] for arrays in short]
    for mask in (None, "causal"):
        ours = attend(q, *short, formats, backend.device, mask=mask)
        expected = attend(q, *dense, formats, backend.device, mask=mask)
        np.testing.assert_array_equal(np.array(ours), np.array(expected))


def test_compiled_for_any_length(backend):
    formats = ((64, 8), (32, 4))

    def run(q, *arrays):
        return attend(q, arrays[:3], arrays[3:], formats, backend.device, mask="causal")

    compiled = mx.compile(run, shapeless=True)
    for n_q, n_k in ((4, 9), (1, 30), (7, 7)):
        q, k, v = operands(12, n_q, n_k, formats)
        np.testing.assert_array_equal(
            np.array(compiled(q, *k, *v)), np.array(run(q, *k, *v)), f"{n_q}, {n_k}"
        )


def test_rows_alone_have_the_same_bits(backend):
    formats = ((64, 8), (64, 4))
    q, k, v = operands(13, 40, 700, formats, "bfloat16")
    whole = attend(q, k, v, formats, backend.device)
    if not backend.rows_alone:
        alone = attend(q, k, v, formats, backend.device)
        assert np.array_equal(bits_of(alone), bits_of(whole))
        return
    for i in (0, 17, 39):
        alone = attend(q[:, :, i : i + 1], k, v, formats, backend.device)
        assert np.array_equal(bits_of(alone), bits_of(whole[:, :, i : i + 1]))


def test_packed_codes_have_no_gradient(backend):
    q, k, v = operands(14, 2, 5, FORMAT)

    def run(w):
        return attend(q, (w, *k[1:]), v, FORMAT, backend.device).sum()

    with pytest.raises(ValueError, match="the packed w must not be differentiated"):
        mx.vjp(run, [k[0]], [mx.array(1.0)])


def test_positional_arguments_are_mlx_lm_s():
    parameters = positional_parameters(mto.quantized_scaled_dot_product_attention)
    names = [p if isinstance(p, str) else p[0] for p in parameters]
    assert names[3:7] == ["scale", "mask", "group_size", "bits"]


FORMAT = ((64, 8), (64, 8))
BAD_INPUTS = {
    "integers": (
        lambda q, k, v: {"q": q.astype(mx.int32)},
        "q must have a floating dtype, got int32.",
    ),
    "no biases": (
        lambda q, k, v: {"k": k[:2]},
        'k must be (w, scales, biases) in mode "affine", got 2 arrays.',
    ),
    "flat values": (
        lambda q, k, v: {"v": [a[0] for a in v]},
        "v must be arrays of 4 dimensions, got shape (2, 5, 64).",
    ),
    "7 bits": (
        lambda q, k, v: {"formats": ((64, 7), (64, 8))},
        'bits must be one of 1, 2, 3, 4, 5, 6, 8 in mode "affine", got 7.',
    ),
    "width": (
        lambda q, k, v: {"q": q[..., :64]},
        "k must have the last dimension of q 64, got shape (1, 2, 5, 128).",
    ),
    "window": (lambda q, k, v: {"window": 0}, "window must be at least 1, got 0."),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input(name):
    change, message = BAD_INPUTS[name]
    q, k, v = operands(10, 3, 5, FORMAT)
    arguments = {"q": q, "k": k, "v": v, "formats": FORMAT, "stream": mx.cpu} | change(q, k, v)
    with pytest.raises(ValueError) as error:
        attend(**arguments)
    assert str(error.value) == f"[quantized_scaled_dot_product_attention] {message}"
