"""route: whose code runs a call of the ops, of patch and of drop_in, and how it is counted."""

from contextlib import nullcontext

import mlx.core as mx
import mlx.nn as nn
import pytest
from tiny_models import TinyModel

import mlx_tensorops as mto
from mlx_tensorops.patch.routing import decide
from mlx_tensorops.testing import emulated_metal

AUTO, MLX = "route auto: MLX has a kernel", "route mlx"
TOKENS = mx.array([[3, 1, 4]])
PLACES = pytest.mark.parametrize("place", ("cpu", "metal"))


@pytest.fixture(autouse=True)
def _fresh_counts():
    mto.reset_report()


def emulation(place):
    return emulated_metal() if place == "metal" else nullcontext()


def expected_outcome(place, route, mixed=False):
    """What the counters say of a call; `mixed` operands are of several dtypes."""
    if route == "mlx":
        return MLX
    return AUTO if place == "metal" and route in (None, "auto") and not mixed else "fused"


def outcomes(op):
    return {row.outcome: row.count for row in mto.report().ops if row.op == op}


@PLACES
@pytest.mark.parametrize("route", (None, "auto", "ours", "mlx"))
@pytest.mark.parametrize("mixed", (False, True))
def test_of_an_op(place, route, mixed):
    w = mx.random.normal((32, 128)).astype(mx.float16)
    packed = mx.quantize(w)
    x = mx.random.normal((2, 128)).astype(mx.float32 if mixed else mx.float16)
    expected = mx.quantized_matmul(x, *packed)
    with emulation(place):
        found = mto.quantized_matmul(x, *packed, route=route)
        mx.eval(found)
    assert found.dtype == x.dtype
    # MLX sums float16 in float16 on a CPU.
    assert mx.allclose(found, expected, rtol=1e-2, atol=0.1)
    assert outcomes("quantized_matmul") == {expected_outcome(place, route, mixed): 1}
    by_choice = expected_outcome(place, route, mixed) != "fused"
    assert (mto.report().total_fallbacks, mto.report().total_by_choice) == (0, by_choice)


@PLACES
@pytest.mark.parametrize("route", (None, "auto", "ours", "mlx"))
def test_of_a_patched_model(place, route):
    model = TinyModel()
    expected = model(TOKENS)
    with emulation(place) as run, mto.patched(model, route=route):
        found = model(TOKENS)
        mx.eval(found)
    assert mx.allclose(found, expected, atol=1e-4)
    report, outcome = mto.report(), expected_outcome(place, route)
    if outcome == "fused":
        assert (report.total_fused, report.total_by_choice) == (5, 0)
        assert all(row.by_choice == {} for row in report.modules)
    else:
        assert (report.total_fused, report.total_by_choice) == (0, 5)
        assert [row.by_choice for row in report.modules] == [
            {outcome: 2},
            {outcome: 2},
            {outcome: 1},
        ]
        assert f"module calls left to MLX by choice: 5 ({outcome})" in report.summary()
    assert report.total_fallbacks == 0 and not report.never_called
    assert place == "cpu" or len(run.launches) == report.total_fused


def test_auto_takes_what_mlx_has_no_kernel_for():
    layer = nn.QuantizedLinear(64, 32)
    layer.scales = layer.scales.astype(mx.bfloat16)
    x = mx.random.normal((2, 64))
    expected = layer(x)
    with emulated_metal() as run, mto.patched(layer):
        found = layer(x)
        mx.eval(found)
    assert mx.allclose(found, expected, atol=1e-4)
    assert [launch.op for launch in run.launches] == ["quantized_matmul_few_rows"]
    assert mto.report().total_fused == 1


@PLACES
@pytest.mark.parametrize("route", (None, "auto", "ours", "mlx"))
def test_of_drop_in(place, route):
    w, x = mx.random.normal((32, 128)), mx.random.normal((2, 128))
    expected = mx.quantized_matmul(x, *mx.quantize(w))
    with emulation(place) as run, mto.drop_in(route=route):
        packed = mx.quantize(w)
        found = mx.quantized_matmul(x, *packed)
        mx.eval(found, mx.dequantize(*packed))
    assert mx.allclose(found, expected, atol=1e-4)
    outcome = expected_outcome(place, route)
    for op in ("quantize", "dequantize", "quantized_matmul"):
        assert outcomes(op) == {outcome: 1}
    n_by_choice = 0 if outcome == "fused" else 3
    assert (mto.report().total_fallbacks, mto.report().total_by_choice) == (0, n_by_choice)
    assert place == "cpu" or len(run.launches) == 3 - n_by_choice


@pytest.mark.parametrize("model", (None, TinyModel()), ids=("every model", "a model"))
@pytest.mark.parametrize("route", ("our", "AUTO", "", 1, b"mlx"))
def test_a_bad_route_changes_nothing(model, route):
    classes = [type(module) for _, module in TinyModel().named_modules()]
    message = r"route must be \"ours\", \"mlx\" or \"auto\", got "
    for refuse in (mto.patch, lambda *a, **k: mto.patched(*a, **k).__enter__()):
        with pytest.raises(ValueError, match=r"\[patch\] " + message):
            refuse(model, route=route)
    quantize = mx.quantize
    with pytest.raises(ValueError, match=r"\[drop_in\] " + message):
        mto.drop_in(route=route)
    assert mx.quantize is quantize
    if model is not None:
        assert [type(module) for _, module in model.named_modules()] == classes
    assert mto.report().modules == ()


def test_a_bad_route_of_an_op():
    with pytest.raises(ValueError, match=r"\[quantize\] route must be \"ours\", .*got \"metal\"\."):
        mto.quantize(mx.zeros((2, 64)), route="metal")
    with pytest.raises(ValueError, match=r"\[quantize\] route must be .* where force_fused is set"):
        mto.quantize(mx.zeros((2, 64)), route="mlx", force_fused=True)


def test_the_last_patch_says_it():
    model = TinyModel()

    def n_fused():
        mto.reset_report()
        model(TOKENS)
        return mto.report().total_fused

    mto.patch(model, route="mlx")
    assert n_fused() == 0
    mto.patch(model, route="ours")
    assert n_fused() == 5
    with mto.patched(model.layers[1], route="mlx"):
        assert n_fused() == 4
    assert n_fused() == 5
    mto.unpatch(model)
    assert n_fused() == 0
    mto.unpatch(model)
    assert type(model.embedding) is nn.QuantizedEmbedding


def test_of_every_model():
    layer, x = nn.QuantizedLinear(64, 32), mx.ones((1, 64))
    with mto.patched(route="mlx"):
        layer(x)
        assert (mto.report().total_fused, mto.report().total_by_choice) == (0, 1)
        with mto.patched(route="ours"):
            layer(x)
        layer(x)
    assert (mto.report().total_fused, mto.report().total_by_choice) == (1, 2)


def test_the_last_drop_in_says_it():
    w = mx.random.normal((32, 128))
    with mto.drop_in(route="mlx"):
        with mto.drop_in():
            mx.eval(mx.quantize(w))
        mx.eval(mx.quantize(w))
    assert outcomes("quantize") == {"fused": 1, MLX: 1}


def test_what_only_mlx_has_is_a_fallback_by_any_route():
    layer = nn.QuantizedLinear(64, 32)
    x = mx.ones((1, 64)).astype(mx.float64, stream=mx.cpu)
    for route, fallbacks in (("auto", 1), ("ours", 1), ("mlx", 0)):
        mto.reset_report()
        with pytest.warns() if fallbacks else nullcontext(), mto.patched(layer, route=route):
            layer(x)
        report = mto.report()
        assert (report.total_fallbacks, report.total_by_choice) == (fallbacks, 1 - fallbacks)


@pytest.mark.parametrize("place", ("cpu", "metal", "old metal"))
@pytest.mark.parametrize("dtype", (mx.float16, mx.float32, mx.float64))
@pytest.mark.parametrize("scales", (mx.float16, mx.float32))
@pytest.mark.parametrize("route", ("auto", "ours", "mlx"))
def test_patch_decides_as_the_op_does(place, dtype, scales, route):
    packed = mx.quantize(mx.random.normal((32, 128)).astype(scales))
    old = emulated_metal(macos=(26, 0))
    with old if place == "old metal" else emulation(place):
        expected = decide("quantized_matmul", dtype, scales, scales, 64, 4, "affine", route)
        x = mx.zeros((1, 128), expected.dtype)
        mto.quantized_matmul(x, *packed, route=route)
    expected_rows = {expected.reason: 1} if expected.reason else {}
    assert outcomes("quantized_matmul") == expected_rows
