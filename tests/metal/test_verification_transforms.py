"""Kernels are verified, and replaced, where a transformation of MLX builds the graph."""

import mlx.core as mx
import pytest
from planted_faults import PACKED, WRONG_CODES, WRONG_ROWS, W, X, only_backward, same

import mlx_tensorops as mto
from mlx_tensorops.testing import emulated_metal
from mlx_tensorops.verification import KernelWarning, verdicts


def test_in_a_compiled_function():
    with emulated_metal(edit_source=WRONG_ROWS, verify=True) as run:
        traced = mx.compile(lambda *packed: mto.dequantize(*packed, route="ours") + 1)
        with pytest.warns(KernelWarning):
            found = traced(*PACKED)
        mx.eval(found)
        assert mx.array_equal(found, mx.dequantize(*PACKED) + 1)
        traced = mx.compile(lambda w: mto.quantize(w, route="ours")[0])
    with emulated_metal(verify=True) as run:
        assert mx.array_equal(traced(W), PACKED[0])
        assert len(run.trials) == 2 and len(run.launches) == 1


def test_in_a_gradient():
    def loss(x):
        return mto.quantized_matmul(x, *PACKED, route="ours").square().sum()

    expected = mx.grad(loss)(X[:2])
    mx.eval(expected)
    with emulated_metal(edit_source=only_backward, verify=True) as run:
        with pytest.warns(KernelWarning, match="few_rows_n"):
            found = mx.grad(loss)(X[:2])
        mx.eval(found)
        assert [bool(verdict.fault) for verdict in verdicts()] == [True, False]
    assert [launch.op for launch in run.launches] == ["quantized_matmul_few_rows"]
    assert mx.allclose(found, expected, rtol=1e-4, atol=1e-2)


def test_in_a_gradient_of_batches():
    """MLX's op, which takes over, wants matrices and their scales of the same batch."""
    x = mx.random.normal((3, 2, 512))
    _, scales, biases = (mx.stack([a, 2 * a, 3 * a]) for a in PACKED)

    def each(x, scales, biases):
        return mto.quantized_matmul(x, PACKED[0], scales, biases, route="ours")

    def loss(x):
        return mx.vmap(each)(x, scales, biases).square().sum()

    expected = mx.grad(loss)(x)
    mx.eval(expected)
    with emulated_metal(edit_source=only_backward, verify=True):
        with pytest.warns(KernelWarning, match="few_rows_n"):
            found = mx.grad(loss)(x)
        mx.eval(found)
    assert mx.allclose(found, expected, rtol=1e-4, atol=1e-2)


def test_under_vmap():
    w = mx.random.normal((3, 4, 512))
    expected = mx.quantize(w)
    with emulated_metal(edit_source=WRONG_CODES, verify=True):
        with pytest.warns(KernelWarning):
            found = mx.vmap(lambda w: mto.quantize(w, route="ours"))(w)
        mx.eval(found)
    assert same(found, expected)


def test_more_rows_under_vmap():
    """The rows of a batch are one product, of which the kernel is another: it is the wrong one."""
    x = mx.random.normal((20, 2, 512))
    expected = mx.quantized_matmul(x, *PACKED)
    with emulated_metal(edit_source=lambda s: s.replace("sums, y,", "sums, y + 1,"), verify=True):
        with pytest.warns(KernelWarning, match="tiles"):
            found = mx.vmap(lambda x: mto.quantized_matmul(x, *PACKED, route="ours"))(x)
        mx.eval(found)
        assert [bool(verdict.fault) for verdict in verdicts()] == [False, True]
    assert mx.array_equal(found, expected)
