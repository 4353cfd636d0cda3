"""Systems that our kernels do not run on: MLX's ops do, the results are right, and it is said."""

import mlx.core as mx
import mlx.nn as nn
import pytest

import mlx_tensorops as mto
from mlx_tensorops.patch import OpRow, PatchWarning
from mlx_tensorops.testing import emulated_metal

OLD = (15, 5)
REASON = "macOS 15.5 (26.2 is needed)"


@pytest.fixture(autouse=True)
def _fresh_counts():
    mto.reset_report()


def operands():
    w = mx.random.normal((32, 128))
    return w, mx.quantize(w), mx.random.normal((3, 128))


def calls(w, packed, x, **options):
    return {
        "quantize": lambda: mto.quantize(w, **options),
        "dequantize": lambda: [mto.dequantize(*packed, **options)],
        "quantized_matmul": lambda: [mto.quantized_matmul(x, *packed, **options)],
    }


@pytest.mark.parametrize("route", (None, "auto", "ours"))
def test_an_old_system_takes_mlx_ops(route):
    w, packed, x = operands()
    expected = [mx.quantize(w), [mx.dequantize(*packed)], [mx.quantized_matmul(x, *packed)]]
    with emulated_metal(macos=OLD) as run:
        found = [call() for call in calls(w, packed, x, route=route).values()]
        mx.eval(found)
    assert run.launches == []
    for ours, theirs in zip(found, expected, strict=True):
        assert all(mx.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    report = mto.report()
    assert report.ops == tuple(
        OpRow(op, "metal", REASON, 1) for op in ("dequantize", "quantize", "quantized_matmul")
    )
    assert (report.total_fallbacks, report.total_by_choice) == (3, 0)
    assert f"quantize [metal] {REASON}: 1" in report.summary()


@pytest.mark.parametrize("op", ("quantize", "dequantize", "quantized_matmul"))
def test_force_fused_says_why(op):
    call = calls(*operands(), force_fused=True)[op]
    with (
        emulated_metal(macos=OLD),
        pytest.raises(ValueError, match=rf"\[{op}\] force_fused must be .*got macOS 15\.5 \(26\.2"),
    ):
        call()


@pytest.mark.parametrize(
    ("macos", "runs"), [((26, 1), False), ((26, 2), True), ((26, 3), True), ((27, 0), True)]
)
def test_the_first_system(macos, runs):
    w, _, _ = operands()
    with emulated_metal(macos=macos) as run:
        mx.eval(mto.quantize(w, route="ours"))
    assert len(run.launches) == runs


def test_the_dtype_does_not_depend_on_the_system():
    _, packed, x = operands()
    x = x.astype(mx.bfloat16)
    with emulated_metal():
        new = mto.quantized_matmul(x, *packed, route="ours")
        mx.eval(new)
    with emulated_metal(macos=OLD):
        old = mto.quantized_matmul(x, *packed, route="ours")
        mx.eval(old)
    assert new.dtype == old.dtype == mx.bfloat16
    assert mx.allclose(new, old, rtol=2**-7, atol=1e-3)


def test_gradients_on_an_old_system():
    _, packed, x = operands()

    def loss(x):
        return mto.quantized_matmul(x, *packed).square().sum()

    expected = mx.grad(loss)(x)
    with emulated_metal(macos=OLD) as run:
        found = mx.grad(loss)(x)
        mx.eval(found)
    assert run.launches == []
    assert mx.allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_a_patched_layer_says_so():
    layer, x = nn.QuantizedLinear(64, 32), mx.random.normal((2, 64))
    expected = layer(x)
    with emulated_metal(macos=OLD) as run, mto.patched(layer):
        with pytest.warns(PatchWarning, match=r"runs MLX's own code: macOS 15\.5"):
            found = layer(x)
        mx.eval(found)
    assert run.launches == []
    assert mx.array_equal(found, expected)
    (row,) = mto.report().modules
    assert (row.fused, row.fallbacks) == (0, {REASON: 1})
