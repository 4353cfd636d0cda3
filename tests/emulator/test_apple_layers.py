"""Judges: Apple's gated delta rule, convolutions, transforms and more attention, unmodified."""

import struct

import apple_kernels as ak
import mlx.core as mx
import numpy as np
import pytest
from apple_nax import assert_close, attention, tiles

from mlx_tensorops.testing import emulator

F, H, B = "float", "half", "bfloat16_t"


def normal(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


# ---- gated delta rule ---------------------------------------------------------------------------

BATCH, T, HK, HV, DK, DV = 2, 37, 2, 4, 64, 64


def gated_delta(q, k, v, state, g, beta, xp=np):
    """S = g S; delta = beta (v - S k); S += delta k; y = S q, for each step, in the type given."""
    repeats = HV // HK
    outputs = []
    for t in range(T):
        qt, kt = (xp.repeat(x[:, t], repeats, axis=1) for x in (q, k))
        state = state * g[:, t, :, None, None]
        delta = beta[:, t, :, None] * (v[:, t] - (state * kt[:, :, None]).sum(-1))
        state = state + delta[..., None] * kt[:, :, None]
        outputs.append((state * qt[:, :, None]).sum(-1))
    return xp.stack(outputs, axis=1), state


def gated_delta_inputs(kind):
    q, k = (normal(BATCH, T, HK, DK, seed=i) for i in (1, 2))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    random = np.random.default_rng(3)
    g, beta = (random.uniform(low, 0.99, (BATCH, T, HV)) for low in (0.7, 0.1))
    inputs = {"q": q / 8, "k": k, "v": normal(BATCH, T, HV, DV, seed=4), "g": g, "beta": beta}
    held = {name: ak.rounded(np.asarray(x, np.float32), kind) for name, x in inputs.items()}
    return held, normal(BATCH, HV, DV, DK, seed=5)


FORMS = {
    # name: header, template arguments after the type, rows of the state of a threadgroup's quarter
    "gated_delta_seq": ("gated_delta_update.h", f"{DK}, {DV}, {HK}, {HV}, 8", 1),
    "gated_delta_fused_chunk": ("gated_delta_update.h", f"{DK}, {DV}, {HK}, {HV}, 8", 8),
    "gated_delta_fused_nax": ("gated_delta_update_nax.h", f"{DK}, {DV}, {HK}, {HV}, 16, 2", 16),
}


def run_gated_delta(apple, name, kind):
    header, arguments, rows = FORMS[name]
    library = apple("utils.h", header, kernel=f"{name}<{kind}, {arguments}>")
    inputs, state = gated_delta_inputs(kind)
    y, state_out = np.zeros_like(inputs["v"]), np.zeros_like(state)
    chunks = tiles(T, 16)
    values = {"T": np.array([T], np.int32), "state_in": state, "y": y, "state_out": state_out}
    if "nax" in name:
        values["chunk_mats"] = np.zeros((BATCH, HV, chunks, 3, 16, 16), np.float32)
        values["chunk_delta"] = np.zeros((BATCH, HV, chunks, 16, DV), np.float32)
    if name != "gated_delta_fused_chunk":
        values["state_cache"] = np.zeros((BATCH, HV, tiles(T, 8), DV, DK), np.float32)
    # The forms in chunks have lanes read what others stored in `gamma_all`, without a barrier.
    allow = () if name == "gated_delta_seq" else ("threadgroup_race",)
    ak.launch(library, "kernel", (32, DV // rows, BATCH * HV), (32, 4, 1), by="threads",
              constants={200: True}, allow=allow, **inputs, **values)  # fmt: skip
    return inputs, state, values


@pytest.mark.parametrize("kind", [F, B])
@pytest.mark.parametrize("name", FORMS)
def test_gated_delta(apple, name, kind):
    inputs, state, values = run_gated_delta(apple, name, kind)
    exact = {n: ak.float32(x).astype(np.float64) for n, x in inputs.items()}
    y, end = gated_delta(exact["q"], exact["k"], exact["v"], state.astype(np.float64), exact["g"],
                         exact["beta"])  # fmt: skip
    # The chunked forms take logarithms and exponentials of the gates; 16-bit types hold parts.
    sums = 2e-4 if kind == F else 4 * ak.ROUNDING[kind]
    assert_close(values["y"], y, kind, sums)
    assert_close(values["state_out"], end, F, sums)


def test_gated_delta_gradient(apple):
    """From the states that the forward kernel kept, against MLX's own gradient on the CPU."""
    inputs, state, values = run_gated_delta(apple, "gated_delta_seq", F)
    name = f"gated_delta_vjp_seq<float, {DK}, {DV}, {HK}, {HV}, 8>"
    library = apple("utils.h", "gated_delta_update_vjp.h", kernel=name)
    cotangents = normal(BATCH, T, HV, DV, seed=6), normal(BATCH, HV, DV, DK, seed=7)
    order = ("q", "k", "v", "state", "g", "beta")
    outputs = dict(zip(("dq", "dk", "dv", "dh", "dg", "db"), order, strict=True))
    shapes = {n: np.zeros_like({**inputs, "state": state}[x]) for n, x in outputs.items()}
    held = {"b": inputs["beta"], **{n: x for n, x in inputs.items() if n != "beta"}}
    held |= {"cot_o": cotangents[0], "cot_h": cotangents[1]}
    ak.launch(library, "kernel", (32, DV, BATCH * HV), (32, 4, 1), by="threads",
              state_cache=values["state_cache"], T=np.array([T], np.int32),
              **held, **shapes)  # fmt: skip
    primals = [mx.array({**inputs, "state": state}[x]) for x in order]
    _, expected = mx.vjp(lambda *a: gated_delta(*a, xp=mx), primals, [*map(mx.array, cotangents)])
    for name, gradient in zip(outputs, expected, strict=True):
        gradient = np.array(gradient)
        assert np.abs(shapes[name] - gradient).max() < 2e-4 * np.abs(gradient).max(), name


# ---- convolutions -------------------------------------------------------------------------------


def conv_params(n, c, o, sizes, window, stride, padding):
    """struct MLXConvParams and ImplicitGemmConv*Params of steel/conv/params.h."""
    outputs = [(s + 2 * p - w) // t + 1
               for s, w, t, p in zip(sizes, window, stride, padding, strict=True)]  # fmt: skip
    dims, one = len(sizes), [1] * len(sizes)

    def steps(*shape):
        return [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]

    numbers = [n, c, o, *sizes, *window, *outputs, *stride, *padding, *one, *one]
    text = struct.pack(f"<{len(numbers)}i", *numbers)
    text += b"\0" * (-len(text) % 8)
    strides = [*steps(n, *sizes, c), *steps(o, *window, c), *steps(n, *outputs, o)]
    params = text + struct.pack(f"<{len(strides)}qi4x", *strides, 1)
    block = 16
    along = steps(n, *sizes, c)[1 : 1 + dims]
    # From the end of one row of the window to the next, from its end to the next channels.
    jumps = [along[-1]]
    jumps += [along[i] - sum((window[j] - 1) * along[j] for j in range(i + 1, dims))
              for i in reversed(range(dims - 1))]  # fmt: skip
    jumps.append(block - sum((w - 1) * a for w, a in zip(window, along, strict=True)))
    rows = n * int(np.prod(outputs))
    iterations = int(np.prod(window)) * tiles(c, block)
    numbers = [rows, o, c * int(np.prod(window)), iterations, *jumps, tiles(o, 32), tiles(rows, 32)]
    gemm = struct.pack(f"<{len(numbers) + 1}i", *numbers, 0)
    return outputs, params, gemm


CONVOLUTIONS = [
    (2, 16, 32, (9, 7), (3, 3), (1, 1), (1, 1)),
    (1, 32, 64, (11, 8), (3, 2), (2, 1), (0, 1)),
    (1, 16, 32, (5, 6, 7), (2, 3, 2), (1, 2, 1), (1, 0, 1)),
]


@pytest.mark.parametrize("kind", [F, H, B])
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolution(apple, case, kind, small):
    n, c, o, sizes, window, stride, padding = case
    dims = len(sizes)
    channels = ", 0" if dims == 2 else ""
    name = f"implicit_gemm_conv_{dims}d<{kind}, 32, 32, 16, 2, 2{channels}, {str(small).lower()}>"
    headers = ("steel/gemm/mma.h", "steel/conv/conv.h", "steel/utils.h")
    header = f"steel/conv/kernels/steel_conv{'_3d' * (dims == 3)}.h"
    library = apple("utils.h", *headers, header, conv=name)
    x = ak.rounded(normal(n, *sizes, c), kind)
    w = ak.rounded(normal(o, *window, c, seed=1), kind)
    outputs, params, gemm = conv_params(*case)
    out = np.zeros((n, *outputs, o), x.dtype)
    rows = n * int(np.prod(outputs))
    ak.launch(library, "conv", (tiles(o, 32), tiles(rows, 32), 1), (32, 2, 2), A=x, B=w, C=out,
              params=params, gemm_params=gemm)  # fmt: skip
    padded = np.pad(ak.float32(x).astype(np.float64), [(0, 0), *((p, p) for p in padding), (0, 0)])
    axes = tuple(range(1, dims + 1))
    views = np.lib.stride_tricks.sliding_window_view(padded, window, axes)
    views = views[(slice(None), *(slice(None, None, s) for s in stride))]
    letters = "uvw"[:dims]
    weights = ak.float32(w).astype(np.float64)
    expected = np.einsum(f"n...c{letters},o{letters}c->n...o", views, weights)
    assert_close(out, expected, kind)


# ---- transforms ---------------------------------------------------------------------------------

RADICES = (13, 11, 8, 7, 6, 5, 4, 3, 2)


def fft_constants(n, factors, per_thread, inverse=False):
    constants = {0: inverse, 1: n & (n - 1) == 0, 2: per_thread, 3: 1, 22: False}
    constants |= {4 + i: factors.count(radix) for i, radix in enumerate(RADICES)}
    return constants | {13 + i: 0 for i in range(9)}


PLANS = [(64, [8, 8], 8), (60, [5, 4, 3], 6), (32, [8, 4], 8), (77, [11, 7], 11), (26, [13, 2], 13)]


@pytest.mark.parametrize(("n", "factors", "per_thread"), PLANS)
@pytest.mark.parametrize("form", ["fft", "inverse", "real", "inverse_real"])
def test_fft(apple, n, factors, per_thread, form):
    """Three transforms, two in a threadgroup."""
    x = (normal(3, n) + 1j * normal(3, n, seed=1)).astype(np.complex64)
    half = n // 2 + 1
    types, inverse = ("float2", "float2"), form.startswith("inverse")
    out, expected = np.zeros((3, n), np.complex64), (np.fft.ifft if inverse else np.fft.fft)(x)
    if form == "real":
        types, x, out = ("float", "float2"), x.real.copy(), np.zeros((3, half), np.complex64)
        expected = np.fft.rfft(x)
    elif form == "inverse_real":
        types, out = ("float2", "float"), np.zeros((3, n), np.float32)
        x = np.fft.rfft(x.real).astype(np.complex64)
        expected = np.fft.irfft(x, n)
    room = 256 if n > 64 else 128
    library = apple("utils.h", "fft.h", fft=f"fft<{room}, {', '.join(types)}>")
    threads = tiles(n, per_thread)
    # Kernels with a real side do two transforms at once.
    groups = tiles(tiles(3, 2), 2) if "real" in form else tiles(3, 2)
    # Of an uneven batch, both transforms of the last pair are the same row, which is stored twice.
    races = {"real": ("device_race",), "inverse_real": ("device_race", "threadgroup_race")}
    allow = (*EARLY_EXIT, *races.get(form, ()))
    ak.launch(library, "fft", (groups, 2, threads), (1, 2, threads), by="threads",
              **{"in": x, "out": out}, n=n, batch_size=3, allow=allow,
              constants=fft_constants(n, factors, per_thread, inverse))  # fmt: skip
    assert np.abs(out - expected).max() < 1e-6 * np.abs(expected).max() * np.log2(n)


# Threads of the transforms that an uneven batch lacks end before the barriers.
EARLY_EXIT = ("barrier_with_exited_threads",)


def test_fft_of_any_length(apple):
    """Bluestein's algorithm: 37 by way of 128."""
    length, n = 37, 128
    library = apple("utils.h", "fft.h", fft="bluestein_fft<256, float2, float2>")
    w_k = np.exp(-1j * np.pi / length * np.arange(-length + 1, length) ** 2.0)
    w_q = np.fft.fft(1 / w_k, n)
    x = (normal(2, length) + 1j * normal(2, length, seed=1)).astype(np.complex64)
    out = np.zeros_like(x)
    ak.launch(library, "fft", (1, 2, 16), (1, 2, 16), by="threads", **{"in": x, "out": out},
              w_q=w_q.astype(np.complex64), w_k=w_k[-length:].astype(np.complex64), length=length,
              n=n, batch_size=2, constants=fft_constants(n, [8, 4, 4], 8))  # fmt: skip
    expected = np.fft.fft(x)
    assert np.abs(out - expected).max() < 1e-5 * np.abs(expected).max()


def test_twiddles(apple):
    twiddles = np.zeros(584, np.complex64)
    kernel = apple("utils.h", "fft.h").pipeline("generate_bluestein_twiddles")
    kernel.launch({0: twiddles}, threads=(584,), threadgroup=(8,))
    angles = [np.arange(p) / (8 * p) for p in (8, 64, 512)]
    assert np.abs(twiddles - np.exp(-2j * np.pi * np.concatenate(angles))).max() < 1e-6


def hadamard(n):
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


@pytest.mark.parametrize("kind", [F, H, B])
@pytest.mark.parametrize(("n", "radix"), [(64, 16), (128, 16), (8, 2)])
def test_hadamard(apple, kind, n, radix):
    """Powers of two; then, for a factor M besides, the kernel that MLX completes with its text."""
    library = apple("utils.h", "hadamard.h", hadamard=f"hadamard_n<{kind}, {n}, {radix}, 2>")
    x = ak.rounded(normal(5, n), kind)
    out = np.zeros_like(x)
    ak.launch(library, "hadamard", (n // radix, 5, 1), (n // radix, 1, 1), by="threads",
              **{"in": x, "out": out}, scale=0.5)  # fmt: skip
    # Rounded to the type after each pass over the radix.
    expected = 0.5 * ak.float32(x).astype(np.float64) @ hadamard(n)
    assert_close(out, expected, kind, 4 * ak.ROUNDING[kind] * np.sqrt(n))


def test_hadamard_of_a_product(apple):
    codelet = """METAL_FUNC void hadamard_radix_m(thread float* x) {
      float a = x[0] + x[1], b = x[0] - x[1], c = x[2] + x[3], d = x[2] - x[3];
      x[0] = a + c; x[1] = b + d; x[2] = a - c; x[3] = b - d;
    }
"""
    text = ak.source("utils.h") + codelet + ak.source("hadamard.h")
    library = emulator.compile(
        text, include_dirs=[ak.include_folder()],
        instantiations={"hadamard": "hadamard_m<float, 32, 4, 2>"},
    )  # fmt: skip
    x = normal(3, 4, 32)
    out = np.zeros_like(x)
    ak.launch(library, "hadamard", (3, 16, 1), (1, 16, 1), by="threads", **{"in": x, "out": out},
              scale=2.0)  # fmt: skip
    expected = 2 * np.einsum("mk,bkn->bmn", hadamard(4), x.astype(np.float64))
    assert_close(out, expected, F)


# ---- attention ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [F, H, B])
def test_attention_of_one_query_in_groups(apple, kind):
    """Two passes: 4 heads of each head of keys together, over blocks of keys."""
    heads, kv_heads, keys, dim, blocks = 8, 2, 75, 64, 32
    library = apple("utils.h", "sdpa_vector.h", second=f"sdpa_vector_2pass_2<{kind}, {dim}>",
                    first=f"sdpa_vector_2pass_1_gqa<{kind}, {dim}, {dim}, 4, 2>")  # fmt: skip
    constants = dict.fromkeys(range(20, 26), False) | {26: blocks}
    q = ak.rounded(normal(1, heads, 1, dim), kind)
    k, v = (ak.rounded(normal(1, kv_heads, keys, dim, seed=i), kind) for i in (1, 2))
    partial, out = np.zeros((heads, blocks, dim), q.dtype), np.zeros_like(q)
    sums, maxs = (np.zeros((heads, blocks), np.float32) for _ in range(2))
    steps = {"k_head_stride": keys * dim, "v_head_stride": keys * dim}
    steps |= {"k_seq_stride": dim, "v_seq_stride": dim}
    ak.launch(library, "first", (kv_heads, 1, blocks), (32, 4, 1), queries=q, keys=k, values=v,
              out=partial, sums=sums, maxs=maxs, N=keys, scale=dim**-0.5, constants=constants,
              **steps)  # fmt: skip
    ak.launch(library, "second", (heads, 1), (1024,), partials=partial, sums=sums, maxs=maxs,
              out=out, blocks=blocks, constants=constants)  # fmt: skip
    sums_error = 1e-5 if kind == F else 2 * ak.ROUNDING[kind]
    assert_close(out, attention(q, k, v, False), kind, sums_error)


def test_parts_of_blocked_attention(apple):
    names = ("sdpa_blocked_scale_copy", "sdpa_blocked_causal_mask")
    library = apple("utils.h", "sdpa_blocked.h", **{name: f"{name}<half>" for name in names})
    q = normal(2, 3, 10, 16).astype(np.float16)
    out = np.zeros((6, 4, 16), np.float16)
    ak.launch(library, names[0], (16, 4, 6), (16, 1, 1), by="threads", q=q, q_block=out, scale=0.25,
              q_strides=ak.strides(q), heads=3, rows=4, head_dim=16, q_offset=5)  # fmt: skip
    assert (out == (q[:, :, 5:9] * np.float16(0.25)).reshape(6, 4, 16)).all()
    scores = normal(8, 12).astype(np.float16)
    expected = scores.copy().reshape(2, 4, 12)
    rows, columns = np.triu_indices(4, 1)
    expected[:, rows, 8 + columns] = -65504
    ak.launch(library, names[1], (4, 8), (4, 1), by="threads", scores=scores, tile_rows=4,
              columns=12)  # fmt: skip
    assert (scores == expected.reshape(8, 12)).all()
