"""Judges: Apple's kernels for the matrix units of M5, unmodified, against float64.

They fill cooperative tensors by slot, so they are right under the M5 layout only.
"""

import apple_kernels
import numpy as np
import pytest
from apple_nax import (
    ATTENTION_NAX,
    GEMM,
    assert_close,
    attention,
    attention_params,
    gemm_params,
    operands,
    run_attention,
    run_fp_quantized,
    run_gemm,
    run_quantized,
    run_thin,
    tiles,
)

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator import Policies

ROW = (False, True)  # orientation of operands, as linear layers have it


@pytest.mark.parametrize(
    ("kind", "transposed", "shape"),
    [
        ("float", (False, False), (128, 128, 256)),
        ("half", (False, True), (100, 70, 90)),
        ("bfloat16_t", (True, False), (33, 65, 300)),
        ("float", (True, True), (1, 17, 31)),
    ],
)
def test_gemm_fused(apple, kind, transposed, shape):
    outcome = run_gemm(apple, kind, transposed, shape)
    outcome.check()
    # Whole tiles of 64 x 64, and K in steps of 32.
    m, n, k = shape
    work = 2 * tiles(m, 64) * 64 * tiles(n, 64) * 64 * tiles(k, 32) * 32
    assert 0 < outcome.launch.counters["matmul_flops"] <= work


def test_gemm_fused_adds_a_scaled_matrix(apple):
    source = np.random.default_rng(1).standard_normal((70, 50)).astype(np.float16)
    run_gemm(apple, "half", ROW, (70, 50, 64), add=(source, 0.5, 2.0)).check()


@pytest.mark.parametrize("policies", [Policies(layout="grid8"), Policies(layout="random", seed=1)])
def test_other_layouts_expose_the_assumption(apple, policies):
    assert run_gemm(apple, "half", ROW, (100, 70, 90), policies).is_wrong()


@pytest.mark.parametrize("order", ["reverse", "random"])
def test_gemm_fused_in_any_order(apple, order):
    run_gemm(apple, "half", ROW, (100, 70, 90), Policies(order=order, seed=3)).check()


# Loads, stores and coordinates only: right under any layout.
@pytest.mark.parametrize("layout", ["m5", "grid8", "random"])
@pytest.mark.parametrize(
    ("kind", "transposed", "groups", "shape"),
    [("half", True, 1, (24, 70, 96)), ("float", False, 2, (16, 100, 200))],
)
def test_gemm_thin(apple, kind, transposed, groups, shape, layout):
    run_thin(apple, kind, transposed, groups, shape, Policies(layout=layout, seed=5)).check()


@pytest.mark.parametrize(
    ("kind", "bits", "group", "shape"),
    [
        ("float", 4, 64, (40, 70, 128)),
        ("half", 3, 64, (64, 64, 128)),
        ("bfloat16_t", 8, 32, (9, 128, 64)),
    ],
)
@pytest.mark.parametrize("transposed", [True, False])
def test_quantized_matmul(apple, kind, bits, group, shape, transposed):
    m, n, k = shape
    shape = shape if transposed else (m, tiles(n, 64) * 64, k)
    run_quantized(apple, kind, bits, group, shape, transposed).check()


@pytest.mark.parametrize(
    ("kind", "bits", "group", "shape"),
    [
        ("float", 4, 32, (40, 70, 128)),
        ("half", 8, 32, (64, 64, 64)),
        ("bfloat16_t", 4, 16, (9, 30, 64)),
    ],
)
def test_fp_quantized_matmul(apple, kind, bits, group, shape):
    run_fp_quantized(apple, kind, bits, group, shape).check()


@pytest.mark.parametrize(
    ("kind", "shape", "kv_length", "causal", "masked"),
    [
        ("float", (1, 1, 1, 128, 64), 128, False, ""),
        ("half", (1, 2, 1, 100, 64), 177, False, ""),
        ("half", (1, 2, 2, 70, 64), 70, True, ""),
        ("bfloat16_t", (1, 1, 1, 33, 128), 65, False, "bool"),
    ],
)
@pytest.mark.parametrize("nax", [True, False])
def test_attention(apple, kind, shape, kv_length, causal, masked, nax):
    run_attention(apple, kind, shape, kv_length, causal, masked, nax).check()


def test_attention_of_wide_heads(apple):
    """attention_nax_dsplit: two simdgroups share the columns of a head of 256."""
    name = "attention_nax_dsplit<half, 32, 32, 256, 2, 2, bool, float>"
    library = apple(*ATTENTION_NAX, attention=name)
    q, k, v = (operands("half", n, 1, 256, False, False, seed=n)[0] for n in (40, 70, 71))
    v = v[:70]
    out = np.zeros_like(q)
    constants = {200: False, 201: False, 300: False, 301: False, 302: False, 303: False}
    params = attention_params((1, 1, 1, 40, 256), 70, (32, 32))
    buffers = {0: q, 1: k, 2: v, 3: out, 4: params}
    library.pipeline("attention", constants).launch(buffers, (2, 1, 1), (32, 2, 2))
    expected = attention(*(x[None, None] for x in (q, k, v)), False)[0, 0]
    assert_close(out, expected, "half", 2 * apple_kernels.ROUNDING["half"])


def test_a_wrong_promise_about_alignment_is_found(apple):
    library = apple(*GEMM, gemm="gemm<half, 64, 64, 256, 2, 2, false, true, float>")
    left, right, _ = operands("half", 64, 64, 90, False, True)
    out = np.zeros((64, 64), np.float16)
    kernel = library.pipeline(
        "gemm", {10: False, 100: False, 110: False, 200: True, 201: True, 202: True}
    )
    params = gemm_params(64, 64, 90, 90, 90, 64, 64, 1)
    with pytest.raises(emulator.Fault, match=r"buffer\(?\s?[01]"):
        kernel.launch({0: left, 1: right, 3: out, 4: params}, (1, 1, 1), (32, 2, 2))


def test_the_wheel_is_the_version_of_mlx():
    assert (apple_kernels.include_folder() / "mlx/backend/metal/kernels/quantized_nax.h").exists()
