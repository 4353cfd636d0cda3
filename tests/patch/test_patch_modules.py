"""Patched layers: the right numbers and MLX's dtypes, in every format, and MLX's code elsewhere."""

import itertools
import warnings

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from tolerance import Budget, assert_same_bits

import mlx_tensorops as mto
from mlx_tensorops.patch import PatchWarning
from mlx_tensorops.reference.dequantize import dequantize, weights
from mlx_tensorops.reference.formats import affine
from mlx_tensorops.reference.quantized_matmul import quantized_matmul

FLOATS = (mx.float32, mx.float16, mx.bfloat16)
N_OUTPUTS = 21
OTHER_MODES = ("mxfp4", "nvfp4", "mxfp8")

every_format = pytest.mark.parametrize(
    ("bits", "group_size"), list(itertools.product(affine.BITS, affine.GROUP_SIZES))
)
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


@pytest.fixture(autouse=True)
def _fresh_counts():
    mto.reset_report()


def make(cls: type, rows: int, columns: int, dtype: mx.Dtype, **options) -> nn.Module:
    layer = cls(rows, columns, **options)
    layer.set_dtype(dtype)
    return layer


def matmul_budget(x: mx.array, layer: nn.Module, dtype: mx.Dtype) -> Budget:
    operands = (layer.weight, layer.scales, layer.biases)
    options = {"group_size": layer.group_size, "bits": layer.bits}
    magnitude = np.abs(np.array(x.astype(mx.float32))) @ np.abs(weights(*operands, **options)).T
    return Budget.of(
        lambda arithmetic: quantized_matmul(x, *operands, **options, arithmetic=arithmetic),
        magnitude,
        dtype,
    )


@every_format
@every_float
def test_linear(bits, group_size, dtype):
    columns = 2 * group_size
    layer = make(
        nn.QuantizedLinear, columns, N_OUTPUTS, dtype, bias=False, bits=bits, group_size=group_size
    )
    for shape in ((1, columns), (2, 3, columns), (33, columns)):
        x = mx.random.normal(shape).astype(dtype)
        with mto.patched(layer):
            matmul_budget(x, layer, dtype).check(layer(x), f"{shape}")
    assert (mto.report().total_fused, mto.report().total_fallbacks) == (3, 0)


@every_format
@every_float
def test_embedding(bits, group_size, dtype):
    columns = 2 * group_size
    layer = make(nn.QuantizedEmbedding, N_OUTPUTS, columns, dtype, bits=bits, group_size=group_size)
    table = dequantize(layer.weight, layer.scales, layer.biases, group_size, bits)
    tokens = mx.array([[20, 0, 7], [7, 7, 3]])
    x = mx.random.normal((2, 3, columns)).astype(dtype)
    with mto.patched(layer):
        assert_same_bits(layer(tokens), table[tokens], "look-up")
        assert_same_bits(layer(tokens[0]), table[tokens[0]], "look-up of one row")
        matmul_budget(x, layer, dtype).check(layer.as_linear(x), "as_linear")
    assert (mto.report().total_fused, mto.report().total_fallbacks) == (3, 0)


@every_float
def test_bias_is_added_as_mlx_adds_it(dtype):
    layer = make(nn.QuantizedLinear, 64, N_OUTPUTS, dtype)
    x = mx.random.normal((5, 64)).astype(dtype)
    with mto.patched(layer):
        without = layer(x)
        layer.bias = mx.random.normal((N_OUTPUTS,)).astype(dtype)
        assert_same_bits(layer(x), without + layer.bias, "bias")


@pytest.mark.parametrize("x_dtype", [*FLOATS, mx.int32, mx.bool_, mx.uint8], ids=str)
@pytest.mark.parametrize("scales", FLOATS, ids=str)
@pytest.mark.parametrize("biases", FLOATS, ids=str)
def test_output_dtypes_are_mlx_s(x_dtype, scales, biases):
    linear, embedding = nn.QuantizedLinear(64, 8), nn.QuantizedEmbedding(8, 64)
    for layer in (linear, embedding):
        layer.scales, layer.biases = layer.scales.astype(scales), layer.biases.astype(biases)
    x, tokens = mx.ones((2, 64)).astype(x_dtype), mx.array([1, 2])

    def run() -> list[mx.array]:
        return [linear(x), embedding(tokens), embedding.as_linear(x)]

    expected = run()
    with mto.patched(linear), mto.patched(embedding):
        actual = run()
    assert [y.dtype for y in actual] == [y.dtype for y in expected]
    for ours, theirs in zip(actual, expected, strict=True):
        assert mx.allclose(ours, theirs, rtol=0.05, atol=0.05)
    assert mto.report().total_fallbacks == 0


@pytest.mark.parametrize("mode", OTHER_MODES)
@pytest.mark.parametrize("dtype", (mx.float32, mx.bfloat16))
def test_other_modes_run_our_ops(mode, dtype):
    model = nn.Sequential(
        nn.QuantizedEmbedding(16, 64, mode=mode), nn.QuantizedLinear(64, 8, mode=mode)
    )
    embedding = model.layers[0]
    tokens, x = mx.array([[1, 2, 3]]), mx.random.normal((2, 64)).astype(dtype)
    expected = model(tokens), embedding(tokens), embedding.as_linear(x)
    with mto.patched(model):
        actual = model(tokens), embedding(tokens), embedding.as_linear(x)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert mx.allclose(ours, theirs, rtol=0.05, atol=0.1)
    report = mto.report()
    assert (report.total_fused, report.total_fallbacks) == (4, 0)


@pytest.mark.parametrize("mode", OTHER_MODES)
def test_other_modes_while_every_model_is_patched(mode):
    layer, x = nn.QuantizedLinear(64, 8, mode=mode), mx.random.normal((2, 64))
    expected = layer(x)
    with mto.patched():
        assert mx.allclose(layer(x), expected, atol=1e-4)
        with mto.patched(layer):
            assert mx.allclose(layer(x), expected, atol=1e-4)
    assert (mto.report().total_fused, mto.report().total_fallbacks) == (2, 0)


def test_each_reason_warns_once():
    layer, other = nn.QuantizedLinear(64, 8), nn.QuantizedLinear(64, 8)
    x = mx.ones((1, 64)).astype(mx.float64, stream=mx.cpu)
    with mto.patched(layer), mto.patched(other):
        with pytest.warns(PatchWarning, match=r"\[patch\] \(root\) \(QuantizedLinear\) runs MLX's"):
            layer(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            layer(x)
            other(x)
        mto.reset_report()
        with pytest.warns(PatchWarning):
            layer(x)
    assert mto.report().total_fallbacks == 1


def test_what_mlx_alone_supports_at_run_time_takes_mlx_s_code():
    layer = nn.QuantizedLinear(64, 8)
    x = mx.ones((1, 64)).astype(mx.float64, stream=mx.cpu)
    with mto.patched(layer), pytest.warns(PatchWarning, match="float64"):
        assert layer(x).dtype == mx.float64
        assert layer(mx.ones((1, 64))).dtype == mx.float32
    (row,) = mto.report().modules
    assert (row.fused, row.n_fallbacks) == (1, 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda layer: layer(mx.ones((1, 63))),
        lambda layer: layer(mx.ones((1, 64)).astype(mx.complex64)),
        lambda layer: layer.update({"biases": mx.ones((8, 2))}) and layer(mx.ones((1, 64))),
        lambda layer: layer.update({"weight": mx.ones((8, 8))}) and layer(mx.ones((1, 64))),
    ],
    ids=["width of x", "complex x", "shape of biases", "unpacked weight"],
)
def test_bad_input_is_refused_at_the_call(call):
    layer = nn.QuantizedLinear(64, 8)
    with mto.patched(layer), pytest.raises(ValueError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(layer)


@pytest.mark.parametrize("bad", [[1.0] * 64, np.ones((1, 64), np.float32)], ids=["list", "numpy"])
def test_what_mlx_refuses_by_type_is_refused_alike(bad):
    layer = nn.QuantizedLinear(64, 8)
    with pytest.raises(TypeError):
        layer(bad)
    with mto.patched(layer), pytest.raises(TypeError):
        layer(bad)


def test_empty_rows_give_empty_outputs():
    layer = nn.QuantizedLinear(64, 8)
    with mto.patched(layer):
        assert layer(mx.zeros((0, 64))).tolist() == []
        assert layer(mx.zeros((2, 0, 64))).shape == (2, 0, 8)


def test_views_as_input():
    layer = nn.QuantizedLinear(64, 8, bias=False)
    x = mx.random.normal((64, 3, 5)).transpose(2, 1, 0)[::2]
    with mto.patched(layer):
        matmul_budget(x, layer, mx.float32).check(layer(x), "transposed and sliced")


def test_new_parameters_are_used_at_once():
    layer, other = nn.QuantizedLinear(64, 8), nn.QuantizedLinear(64, 8, bits=8, group_size=32)
    x = mx.random.normal((3, 64))
    with mto.patched(layer):
        layer(x)
        layer.update(other.parameters())
        layer.bits, layer.group_size = other.bits, other.group_size
        assert mx.allclose(layer(x), other(x), atol=1e-5)
        layer.set_dtype(mx.bfloat16)
        assert layer(x.astype(mx.bfloat16)).dtype == mx.bfloat16
