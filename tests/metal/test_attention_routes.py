"""Whose code runs a call of attention on a Mac: ours, or MLX's own kernel where it has one."""

import mlx.core as mx
import pytest

import mlx_tensorops as mto
from mlx_tensorops.testing import emulated_metal
from mlx_tensorops.verification import KernelWarning, verdicts

ONES = mx.ones((2,))
MLX = "route auto: MLX has a kernel"
# n_q, n_k, d, d_v, dtype, options, and whether MLX has a kernel for it.
CALLS = {
    "plain": (40, 40, 64, 64, mx.float16, {}, True),
    "causal": (9, 40, 128, 128, mx.float32, {"mask": "causal"}, True),
    "a mask": (40, 40, 96, 64, mx.float16, {"mask": mx.ones((40, 40), mx.bool_)}, True),
    "sinks": (40, 40, 80, 80, mx.bfloat16, {"sinks": ONES.astype(mx.bfloat16)}, True),
    "one query": (1, 40, 192, 128, mx.float16, {}, True),
    "many queries of wide keys": (40, 40, 192, 128, mx.float16, {}, False),
    "wide heads": (40, 40, 256, 256, mx.float16, {"mask": "causal"}, False),
    "wide heads, few queries": (4, 40, 256, 256, mx.float16, {}, True),
    "more queries than keys": (8, 4, 64, 64, mx.float16, {}, False),
    "another dimension": (40, 40, 40, 40, mx.float16, {}, False),
    "a window": (40, 40, 64, 64, mx.float16, {"window": 7}, False),
    "a softcap": (40, 40, 64, 64, mx.float16, {"softcap": 3.0}, False),
    "alibi": (40, 40, 64, 64, mx.float16, {"alibi": ONES}, False),
    "segments": (40, 40, 64, 64, mx.float16, {"segment_ids": mx.zeros((1, 40), mx.int32)}, False),
    "documents": (40, 40, 64, 64, mx.float16, {"cu_seqlens": mx.array([0, 9, 40])}, False),
    "logsumexp": (40, 40, 64, 64, mx.float16, {"return_lse": True}, False),
}


def attend(n_q, n_k, d, d_v, dtype, options, **flags):
    q, k, v = (
        mx.random.normal((1, 2, n, size)).astype(dtype)
        for n, size in ((n_q, d), (n_k, d), (n_k, d_v))
    )
    outputs = mto.scaled_dot_product_attention(
        q, k, v, scale=d**-0.5, **options, **flags, stream=mx.cpu
    )
    mx.eval(outputs)
    return outputs


def outcomes():
    return [row.outcome for row in mto.report().ops if row.op == "scaled_dot_product_attention"]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("flags", ({}, {"route": "ours"}, {"force_fused": True}), ids=str)
def test_mlx_has_a_kernel_or_ours_runs(call, flags):
    *operands, options, mlx_has_one = call
    with emulated_metal() as run:
        attend(*operands, options, **flags)
    given_away = mlx_has_one and not flags
    assert outcomes() == [MLX if given_away else "fused"]
    assert bool(run.launches) == (not given_away)


def test_nothing_named_falls_back():
    """Every dimension that the op names, on Metal."""
    for d, d_v in ((1, 3), (40, 40), (96, 64), (256, 256), (512, 512), (576, 512), (576, 576)):
        for dtype in (mx.float32, mx.float16, mx.bfloat16):
            with emulated_metal():
                attend(9, 33, d, d_v, dtype, {}, force_fused=True)
    assert set(outcomes()) == {"fused"}


def test_a_right_kernel_is_verified_once():
    with emulated_metal(verify=True) as run:
        for _ in range(2):
            attend(40, 40, 40, 40, mx.float16, {"window": 7})
        (verdict,) = verdicts()
    assert (verdict.fault, len(run.trials), len(run.launches)) == ("", 2, 2)


def test_a_wrong_kernel_gives_way():
    """One that forgets to multiply earlier sums where the maximum moves."""

    def edit(text):
        assert "metal::max(before - now, -kVanishing)" in text
        return text.replace("metal::max(before - now, -kVanishing)", "0.0f")

    options = {"window": 7}
    mx.random.seed(3)
    expected = attend(40, 70, 40, 40, mx.float32, options, route="mlx")
    mx.random.seed(3)
    with emulated_metal(verify=True, edit_source=edit) as run, pytest.warns(KernelWarning):
        found = attend(40, 70, 40, 40, mx.float32, options)
    assert mx.array_equal(found, expected) and run.launches == []
