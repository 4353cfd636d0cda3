"""Layers in any format: their values, their gradients, and what they take over."""

import sys

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models.bitlinear_layers as bitlinear
import numpy as np
import pytest
from emulated_only import ELSEWHERE
from format_cases import FLOAT, INSIDE, STORED, FormatCase, random_packed
from mlx.utils import tree_flatten

import mlx_tensorops as mto
from mlx_tensorops.layers import BlockEmbedding, BlockLinear
from mlx_tensorops.testing import metal_kernel

N, K = 16, 256


def packed(mode):
    case = FormatCase(mode, (N, K), scales="uint8" if mode in STORED else "float32")
    return random_packed(case, np.random.default_rng(0))


def dense(mode, arrays):
    return mto.dequantize(*arrays, mode=mode, dtype=mx.float32)


@pytest.mark.parametrize("mode", [*STORED, *FLOAT, *INSIDE])
def test_linear(mode):
    arrays = packed(mode)
    layer = BlockLinear(*arrays, mode=mode, bias=mx.arange(N).astype(mx.float32))
    x = mx.random.normal((3, K))
    expected = x @ dense(mode, arrays).T + mx.arange(N)
    np.testing.assert_allclose(np.array(layer(x)), np.array(expected), rtol=1e-4, atol=1e-3)
    gradient = mx.grad(lambda x: layer(x).sum())(x)
    expected = mx.broadcast_to(dense(mode, arrays).sum(0), x.shape)
    np.testing.assert_allclose(np.array(gradient), np.array(expected), rtol=1e-4, atol=1e-3)
    assert not tree_flatten(layer.trainable_parameters())
    assert f"mode={mode}" in repr(layer)


@pytest.mark.parametrize("mode", ["mxfp4", "nf4", "ternary", "q4_k", "q8_0"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_embedding(mode, shape):
    arrays = packed(mode)
    table = BlockEmbedding(*arrays, mode=mode, dtype=mx.bfloat16)
    tokens = mx.array(np.random.default_rng(1).integers(0, N, shape))
    rows = table(tokens)
    assert rows.dtype == mx.bfloat16 and rows.shape == (*shape, K)
    expected = dense(mode, arrays)[tokens].astype(mx.bfloat16)
    np.testing.assert_array_equal(
        np.array(rows.astype(mx.float32)), np.array(expected.astype(mx.float32))
    )
    x = mx.random.normal((2, K))
    np.testing.assert_allclose(
        np.array(table.as_linear(x)), np.array(x @ dense(mode, arrays).T), rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("mode", ["fp8_e4m3", "bitnet"])
def test_embedding_of_rows_that_do_not_stand_alone(mode):
    with pytest.raises(ValueError, match=r"^\[BlockEmbedding\] scales must have the rows of"):
        BlockEmbedding(*packed(mode), mode=mode)


@pytest.mark.parametrize(
    "options", [{"mode": "affine", "bits": 3, "group_size": 32}, {"mode": "mxfp4"}]
)
def test_from_linear(options):
    linear = nn.Linear(K, N)
    layer = BlockLinear.from_linear(linear, **options)
    x = mx.random.normal((4, K))
    w_q, scales, *biases = mto.quantize(linear.weight, **options)
    weight = mto.dequantize(w_q, scales, *biases, **options, dtype=mx.float32)
    expected = x @ weight.T + linear.bias
    np.testing.assert_allclose(np.array(layer(x)), np.array(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(sys.platform != "linux", reason=ELSEWHERE)
@pytest.mark.parametrize("inverted", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_from_bitlinear_as_mlx_lms_kernel_computes(monkeypatch, inverted, bias):
    """mlx-lm's own Metal kernel, in the emulator."""
    monkeypatch.setattr(mx.fast, "metal_kernel", metal_kernel)
    monkeypatch.setattr(bitlinear, "_bitlinear_kernel", bitlinear.make_bitlinear_kernel())
    theirs = bitlinear.BitLinear(K, N, bias=bias, invert_weight_scales=inverted)
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, (4, N // 4, K))
    octets = (codes << np.array([0, 2, 4, 6])[:, None, None]).sum(0).astype(np.uint8)
    theirs.weight = mx.array(octets)
    theirs.weight_scale = mx.array(np.float32([0.37]))
    if bias:
        theirs.bias = mx.arange(N).astype(mx.float32)
    x = mx.array(rng.standard_normal((2, 3, K)).astype(np.float32))
    ours = BlockLinear.from_bitlinear(theirs)
    np.testing.assert_allclose(np.array(ours(x)), np.array(theirs(x)), rtol=1e-5, atol=1e-4)
