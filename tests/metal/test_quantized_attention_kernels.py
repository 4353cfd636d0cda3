"""The Metal kernel of many queries and packed keys and values, under every choice of a GPU."""

import re

import mlx.core as mx
import numpy as np
import pytest
from packed_attention import FORMATS, attend, check, operands
from tolerance import bits_of

import mlx_tensorops as mto
from mlx_tensorops.testing import emulated_metal, emulator
from mlx_tensorops.verification import KernelWarning

LAYOUTS, ORDERS = ("m5", "grid", "random"), ("forward", "reverse", "random")
N_Q, N_K = 18, 41
PAIRS = list(zip(FORMATS, FORMATS[2:] + FORMATS[:2], strict=True))
IDS = mx.array([[0] * 3 + [1] * 15]), mx.array([[0] * 9 + [1] * 20 + [-1] * 2 + [1] * 10])
CALLS = {
    "causal": {"mask": "causal", "sinks": mx.arange(8) / 4},
    "segments": {"segment_ids": IDS, "softcap": 2.0, "alibi": mx.arange(8) / 10},
    "documents": {"cu_seqlens": (mx.array([0, 5, 16]), mx.array([1, 20, 40])), "window": 9},
    "mask": {
        "mask": mx.where(mx.arange(N_K) % 5 == 2, -mx.inf, 0.5).astype(mx.float16),
        "block_mask": mx.array([[True, True, False], [False, True, True]]),
        "block_size": (16, 16),
    },
}
BY_CALL = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@BY_CALL
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ("float32", "float16"))
def test_every_layout_order_and_handoff(call, layout, dtype):
    """Codes, weights and rows go by coordinates, through registers or through memory."""
    i = LAYOUTS.index(layout)
    formats = PAIRS[list(CALLS.values()).index(call)]
    for order, compatible in zip(ORDERS, (True, False, i % 2 == 0), strict=True):
        choices = {"layout": layout, "order": order, "compatible": compatible, "seed": i}
        choices |= {"static_k": "trap", "truncate_relaxed": order == "random"}
        with emulated_metal(**choices) as run:
            check(*operands(3, N_Q, N_K, formats, dtype), formats, mx.cpu, **call)
        assert "quantized_scaled_dot_product_attention" in {launch.op for launch in run.launches}


@pytest.mark.parametrize(
    ("name", "watch"), [("causal", "trace"), ("documents", "trace"), ("documents", "values")]
)
def test_no_races_and_nothing_unset(name, watch):
    formats = ((64, 4), (32, 3))
    packed = operands(4, N_Q, N_K, formats, "float16")
    for compatible in (True, False) if watch == "trace" else (False,):
        with emulated_metal(compatible=compatible):
            expected = bits_of(attend(*packed, formats, mx.cpu, **CALLS[name]))
        choices = {"order": "reverse", "compatible": compatible, watch: True}
        with emulated_metal(**choices) as run:
            found = bits_of(attend(*packed, formats, mx.cpu, **CALLS[name]))
        assert not run.findings
        assert np.array_equal(found, expected)


# Barriers without which the kernel must be found wrong, by the text that follows them.
BARRIERS = {
    "codes are there": "mto::decode_packed(codes",
    "codes are used": "Tile q_tile(",
    "values are there": "mto::decode_packed(values",
    "values are used": "of_values.run(left, values",
}


@pytest.mark.parametrize("follows", BARRIERS.values(), ids=BARRIERS)
def test_every_barrier_is_needed(follows):
    formats = ((32, 8), (32, 8))
    edits = []

    def edit(source):
        barrier = r"simdgroup_barrier\(mem_flags::mem_threadgroup\);"
        changed, n = re.subn(rf"{barrier}(?=[^\n]*\n\s*{re.escape(follows)})", "", source)
        edits.append(n)
        return changed

    packed = operands(5, N_Q, N_K, formats, "float16")
    with emulated_metal(order="reverse", trace=True, compatible=False, edit_source=edit):
        with pytest.raises(emulator.Fault, match="race"):
            mx.eval(attend(*packed, formats, mx.cpu))
    assert 1 in edits


# Changes that must show.
FAULTS = {
    "bias": ("sums[at[1]][group] * of_key[1]", "0.0f"),
    "scale": ("fma(products[i], of_key[0],", "fma(products[i], 1.0f,"),
    "key": ("ushort(at[0] % kKeys)", "ushort((at[0] + 1) % kKeys)"),
    "group": ("sums_of_q[simdgroup], g);", "sums_of_q[simdgroup], 0);"),
    "column": ("column + part, lane);", "column, lane);"),
    "last keys": (
        "lane < n_rows ? groups.parameters(first + lane, group) : float2(0.0f)",
        "groups.parameters(first, group)",
    ),
    "lengths": ("min(kKeys, params.n_k - begin)", "kKeys"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_shows(name):
    text, wrong = FAULTS[name]
    formats = ((32, 4), (64, 4))
    packed = operands(6, N_Q, N_K, formats, "float16")
    found = []

    def edit(source):
        found.append(text in source)
        return source.replace(text, wrong)

    with pytest.raises((AssertionError, emulator.Fault)):
        with emulated_metal(edit_source=edit):
            check(*packed, formats, mx.cpu)
    assert any(found)


def packed_call(mode, n_q, **options):
    """A call of 16-bit queries, keys of one mode and values of another."""
    mx.random.seed(n_q)
    q = mx.random.normal((1, 4, n_q, 64)).astype(mx.float16)
    k, v = (mx.random.normal((1, 2, 70, 64)).astype(mx.float16) for _ in range(2))
    modes = (mode, "mxfp8" if mode == "affine" else "affine")
    packed = [mx.quantize(a, mode=m, stream=mx.cpu) for a, m in zip((k, v), modes, strict=True)]
    options |= {"group_size": None, "bits": None, "mode": modes, "stream": mx.cpu}
    out = mto.quantized_scaled_dot_product_attention(q, *packed, 0.125, **options)
    mx.eval(out)
    return out


@pytest.mark.parametrize("mode", ("affine", "mxfp4", "nvfp4"))
@pytest.mark.parametrize("n_q", (1, 20))
def test_right_kernels_are_verified(mode, n_q):
    with emulated_metal(verify=True) as run:
        packed_call(mode, n_q, mask="causal", force_fused=True)
    assert len(run.trials) == 2 and len(run.launches) == 1


@pytest.mark.parametrize("n_q", (1, 20))
def test_a_wrong_kernel_is_not_used(n_q):
    def wrong(source):
        return source.replace("metal::fma(level(code),", "metal::fma(level(code ^ 1),")

    expected = packed_call("mxfp4", n_q, mask="causal")
    with emulated_metal(verify=True, edit_source=wrong) as run:
        with pytest.warns(KernelWarning):
            found = packed_call("mxfp4", n_q, mask="causal", route="ours")
    assert "quantized" not in "".join(launch.op for launch in run.launches)
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=0.01, atol=0.01)


def test_address_spaces():
    sources = set()

    def keep(source):
        sources.add(source)
        return source

    with emulated_metal(edit_source=keep):
        packed_call("nvfp4", 20)
    for source in sources:
        assert emulator.check(source) == ()
