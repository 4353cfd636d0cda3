"""drop_in: MLX's names run our ops, mean what they meant, and come back."""

import inspect
import itertools
import sys
import types

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.base import quantized_scaled_dot_product_attention
from tiny_models import TinyModel

import mlx_tensorops as mto

NAMES = ("quantize", "dequantize", "quantized_matmul")
ORIGINALS = {name: getattr(mx, name) for name in NAMES}
FLOATS = (mx.float32, mx.float16, mx.bfloat16)


@pytest.fixture(autouse=True)
def _fresh_counts():
    mto.reset_report()
    yield
    assert current() == ORIGINALS


def current() -> dict:
    return {name: getattr(mx, name) for name in NAMES}


def fused() -> dict[str, int]:
    return {row.op: row.count for row in mto.report().ops if row.outcome == "fused"}


def operands(dtype: mx.Dtype = mx.float32, rows: int = 8, columns: int = 128):
    return mx.quantize(mx.random.normal((rows, columns)).astype(dtype))


def test_call_and_undo():
    handle = mto.drop_in()
    assert all(mx_op is not ORIGINALS[name] for name, mx_op in current().items())
    packed = operands()
    mx.eval(mx.quantized_matmul(mx.ones((2, 128)), *packed), mx.dequantize(*packed))
    assert fused() == {"quantize": 1, "dequantize": 1, "quantized_matmul": 1}
    handle.undo()
    assert current() == ORIGINALS
    handle.undo()
    operands()
    assert fused()["quantize"] == 1


def test_nested_in_any_order():
    with mto.drop_in() as outer:
        ours = current()
        inner = mto.drop_in()
        outer.undo()
        assert current() == ours
    assert current() == ours
    inner.undo()


def test_undone_by_an_exception():
    with pytest.raises(KeyError, match="mine"), mto.drop_in():
        raise KeyError("mine")


def test_names_imported_elsewhere_are_reached_and_given_back():
    before, meanwhile = types.ModuleType("imported_before"), types.ModuleType("imported_meanwhile")
    before.quantize = before.same = mx.quantize
    before.other = mx.matmul
    sys.modules[before.__name__], sys.modules[meanwhile.__name__] = before, meanwhile
    try:
        with mto.drop_in():
            assert before.quantize is before.same is mx.quantize is not ORIGINALS["quantize"]
            meanwhile.dequantize = mx.dequantize
        assert before.quantize is before.same is ORIGINALS["quantize"]
        assert before.other is mx.matmul
        assert meanwhile.dequantize is ORIGINALS["dequantize"]
    finally:
        del sys.modules[before.__name__], sys.modules[meanwhile.__name__]


def test_foreign_replacements_are_respected():
    def theirs(*args, **kwargs):
        return ORIGINALS["quantize"](*args, **kwargs)

    mx.quantize = theirs
    with mto.drop_in():
        assert mx.quantize is not theirs
    assert mx.quantize is theirs
    mx.quantize = ORIGINALS["quantize"]

    with mto.drop_in():
        mx.quantize = theirs
    assert mx.quantize is theirs
    mx.quantize = ORIGINALS["quantize"]


def test_our_own_ops_do_not_recurse():
    with mto.drop_in():
        packed = mto.quantize(mx.random.normal((8, 128)))
        mx.eval(mto.dequantize(*packed), mto.quantized_matmul(mx.ones((2, 128)), *packed))
        # What only MLX supports goes from our op to MLX's, by now replaced, op.
        x = mx.ones((2, 128)).astype(mx.float64, stream=mx.cpu)
        assert mto.quantized_matmul(x, *packed).dtype == mx.float64


def test_layers_and_caches_reach_our_ops():
    model, tokens = TinyModel(), mx.array([[1, 2, 3]])
    queries, keys = mx.random.normal((1, 4, 3, 64)), mx.random.normal((1, 2, 5, 64))

    def attend() -> mx.array:
        cached = mx.quantize(keys)
        # mlx-lm scales the queries in place.
        return quantized_scaled_dot_product_attention(
            queries + 0, cached, cached, scale=0.125, mask=None, bits=4
        )

    expected, expected_attention = model(tokens), attend()
    with mto.drop_in():
        assert mx.allclose(model(tokens), expected, atol=1e-4)
        assert fused()["quantized_matmul"] == 4 and fused()["dequantize"] == 1
        assert mx.allclose(attend(), expected_attention, atol=1e-4)
        assert fused()["quantized_matmul"] == 6
    assert mto.report().total_fallbacks == 0


@pytest.mark.parametrize("name", NAMES)
def test_signatures_are_those_that_mlx_documents(name):
    documented = ORIGINALS[name].__doc__.split("\n")[0]
    with mto.drop_in():
        ours = getattr(mx, name)
    assert ours.__name__ == name and ours.__doc__ == ORIGINALS[name].__doc__
    assert ours.__module__ == ORIGINALS[name].__module__
    parameters = inspect.signature(ours).parameters.values()
    parts = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        parts.append(parameter.name + default)
        if parameter.kind is parameter.POSITIONAL_ONLY:
            parts = [part for part in parts if part != "/"] + ["/"]
    inner = documented[documented.index("(") + 1 : documented.rindex(") ->")]
    expected = []
    for part in inner.split(", "):
        before_default, _, default = part.partition(" = ")
        plain = before_default.split(":")[0]
        expected.append(f"{plain} = {default}" if default else plain)
    assert parts == expected


@pytest.mark.parametrize("x_dtype", [*FLOATS, mx.int32, mx.bool_], ids=str)
def test_output_dtypes_are_mlx_s(x_dtype):
    w, scales, biases = operands()
    x = mx.ones((2, 128)).astype(x_dtype)
    for scales_dtype, biases_dtype in itertools.product(FLOATS, FLOATS):
        parameters = scales.astype(scales_dtype), biases.astype(biases_dtype)
        expected = mx.quantized_matmul(x, w, *parameters), mx.dequantize(w, *parameters)
        with mto.drop_in():
            actual = mx.quantized_matmul(x, w, *parameters), mx.dequantize(w, *parameters)
        assert [y.dtype for y in actual] == [y.dtype for y in expected]
    assert mto.report().total_fallbacks == 0


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_quantize_and_dequantize_keep_dtypes(dtype):
    w = mx.random.normal((8, 128)).astype(dtype)
    expected = mx.quantize(w)
    with mto.drop_in():
        actual = mx.quantize(w)
        assert mx.dequantize(*actual, dtype=mx.float16).dtype == mx.float16
    assert [part.dtype for part in actual] == [part.dtype for part in expected]
    assert all(mx.array_equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4", "mxfp8"])
def test_other_modes_take_our_ops(mode):
    values, x = mx.random.normal((8, 128)), mx.random.normal((2, 128))
    expected = mx.quantize(values, mode=mode)
    with mto.drop_in():
        packed = mx.quantize(values, mode=mode)
        assert all(mx.array_equal(a, b) for a, b in zip(packed, expected, strict=True))
        y, dense = mx.quantized_matmul(x, *packed, mode=mode), mx.dequantize(*packed, mode=mode)
        mx.eval(y, dense)
    assert mx.allclose(y, mx.quantized_matmul(x, *packed, mode=mode), atol=1e-3)
    theirs = mx.dequantize(*packed, mode=mode)
    assert dense.dtype == theirs.dtype and mx.array_equal(dense, theirs)
    assert {"quantize", "dequantize", "quantized_matmul"} <= set(fused())


def test_group_sizes_and_shapes_that_only_mlx_takes():
    w, scales, biases = operands()
    fine = mx.repeat(scales, 4, axis=-1), mx.repeat(biases, 4, axis=-1)
    expected = mx.dequantize(w, *fine, group_size=16), mx.dequantize(w, scales, biases[:, :1])
    with mto.drop_in():
        actual = mx.dequantize(w, *fine, group_size=16), mx.dequantize(w, scales, biases[:, :1])
    assert all(mx.array_equal(a, b) for a, b in zip(actual, expected, strict=True))
    assert mto.report().total_fallbacks == 2


@pytest.mark.parametrize("name", ["group_size", "bits"])
def test_sizes_below_one_are_refused(name):
    """MLX divides by them, and the process dies."""
    w, scales, biases = operands()
    with mto.drop_in():
        for call in (
            lambda **size: mx.quantize(mx.ones((8, 128)), **size),
            lambda **size: mx.dequantize(w, scales, biases, **size),
            lambda **size: mx.quantized_matmul(mx.ones((2, 128)), w, scales, biases, **size),
        ):
            with pytest.raises(ValueError, match=name):
                call(**{name: 0})


@pytest.mark.parametrize(
    "call",
    [
        lambda w, s, b: mx.quantize([1.0]),
        lambda w, s, b: mx.quantize(mx.ones((8, 128)), bits=4.0),
        lambda w, s, b: mx.quantize(mx.ones((8, 128)), force_fused=True),
        lambda w, s, b: mx.quantize(w=mx.ones((8, 128))),
        lambda w, s, b: mx.dequantize(w),
        lambda w, s, b: mx.dequantize(w, s, [1.0]),
        lambda w, s, b: mx.quantized_matmul(mx.ones((2, 128)), w, s, b, stream="cpu"),
        lambda w, s, b: mx.quantized_matmul([[1.0] * 128], w, s, b),
    ],
    ids=range(8),
)
def test_wrong_types_are_type_errors_as_in_mlx(call):
    packed = operands()
    with pytest.raises(TypeError):
        call(*packed)
    with mto.drop_in(), pytest.raises(TypeError):
        call(*packed)


@pytest.mark.parametrize(
    "stream", [mx.cpu, mx.Device(mx.cpu, 0), mx.default_stream(mx.cpu)], ids=str
)
def test_streams(stream):
    w, scales, biases = operands()
    x = mx.ones((2, 128)).astype(mx.float16)
    expected = mx.quantized_matmul(x, w, scales, biases, stream=stream)
    with mto.drop_in():
        actual = mx.quantized_matmul(x, w, scales, biases, stream=stream)
        mx.eval(mx.quantize(mx.ones((2, 64)), stream=stream))
        mx.eval(mx.dequantize(w, scales, biases, stream=stream))
    assert actual.dtype == expected.dtype and mx.allclose(actual, expected, atol=1e-3)
    assert mto.report().total_fallbacks == 0


def test_gradients_flow_through_the_cast():
    w, scales, biases = operands()
    x = mx.random.normal((2, 128)).astype(mx.float16)

    def loss(x, scales, biases):
        return mx.quantized_matmul(x, w, scales, biases).square().sum()

    gradient = mx.grad(loss, argnums=(0, 1, 2))
    expected = gradient(x, scales, biases)
    with mto.drop_in():
        actual = gradient(x, scales, biases)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert mx.allclose(ours, theirs, rtol=1e-2, atol=1e-2 * mx.abs(theirs).max().item())


def test_together_with_patch():
    model, tokens = TinyModel(), mx.array([[1, 2, 3]])
    expected = model(tokens)
    with mto.drop_in(), mto.patched(model):
        assert mx.allclose(model(tokens), expected, atol=1e-4)
    assert mto.report().total_fused == 5 and fused()["quantized_matmul"] == 4


def test_gather_qmm_is_mlx_s():
    original = mx.gather_qmm
    with mto.drop_in():
        assert mx.gather_qmm is original
        layer = nn.QuantizedLinear(64, 8)
        assert layer(mx.ones((1, 64))).shape == (1, 8)
