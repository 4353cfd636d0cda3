"""Custom kernels as part of MLX's graphs: lazy, traced, on streams, and when they fail."""

import threading

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.testing import custom_kernel, emulator, metal_kernel

SCALE = "uint i = thread_position_in_grid.x; out[i] = inp[i] * factor;"
_kernel = metal_kernel("scale", ["inp", "factor"], ["out"], SCALE)
_faulty = metal_kernel("faulty", ["inp"], ["out"], "out[0] = inp[7];")


def scaled(x, factor=2.0, kernel=_kernel, **options):
    (out,) = kernel(
        inputs=[x, factor][: 2 if kernel is _kernel else 1],
        grid=(x.size, 1, 1),
        threadgroup=(32, 1, 1),
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
        **options,
    )
    return out


@pytest.fixture
def n_launches():
    before = custom_kernel.launches["scale"]
    return lambda: custom_kernel.launches["scale"] - before


def test_nothing_runs_before_it_is_needed(n_launches):
    out = scaled(mx.arange(4.0)) + 1
    assert n_launches() == 0
    assert out.tolist() == [1, 3, 5, 7]
    assert n_launches() == 1
    mx.eval(out)
    assert n_launches() == 1


def test_a_kernel_takes_what_another_gave():
    x = mx.arange(4.0)
    assert scaled(scaled(mx.sin(x)) + 1, 3.0).tolist() == (3 * (2 * mx.sin(x) + 1)).tolist()


def test_inside_a_compiled_function(n_launches, tracing):
    traced = []

    @mx.compile
    def f(x, factor):
        traced.append(x.shape)
        return scaled(mx.exp(x), factor) + 1

    for shape in [(5,), (5,), (2, 3)]:
        x = mx.random.normal(shape)
        assert mx.allclose(f(x, mx.array(3.0)), 3 * mx.exp(x) + 1)
    assert traced == [(5,), (2, 3)]
    assert n_launches() == 3


def test_a_shapeless_graph_cannot_have_one(tracing):
    f = mx.compile(scaled, shapeless=True)
    with pytest.raises(ValueError, match="scale cannot infer output shapes"):
        f(mx.ones(3))


def test_a_kernel_has_no_gradient_of_its_own():
    x = mx.arange(3.0)
    grad = mx.grad(lambda x: (x * mx.stop_gradient(scaled(x))).sum())
    assert grad(x).tolist() == [0, 2, 4]
    with pytest.raises(ValueError, match="kernel scale has no gradient: mx.custom_function.vjp"):
        mx.grad(lambda x: scaled(x).sum())(x)
    with pytest.raises(ValueError, match="kernel scale has no jvp"):
        mx.jvp(scaled, [x], [x])
    with pytest.raises(ValueError, match="kernel scale has no vmap"):
        mx.vmap(scaled)(mx.ones((2, 3)))


def test_a_custom_function_gives_it_one():
    @mx.custom_function
    def double(x):
        return scaled(x)

    @double.vjp
    def double_vjp(primals, cotangent, output):
        return scaled(cotangent)

    loss = mx.value_and_grad(lambda x: (double(x) * x).sum())
    value, grad = loss(mx.arange(3.0))
    assert (value.item(), grad.tolist()) == (10, [0, 4, 8])
    compiled_value, compiled_grad = mx.compile(loss)(mx.arange(3.0))
    assert (compiled_value.item(), compiled_grad.tolist()) == (10, [0, 4, 8])


def test_streams():
    x = mx.ones(64)
    streams = [mx.new_stream(mx.cpu) for _ in range(3)]
    for _ in range(20):
        for stream in streams:
            x = scaled(mx.add(x, 1, stream=stream), 0.5, stream=stream)
        x = scaled(x)
    mx.async_eval(x)
    expected = 1
    for _ in range(20):
        for _ in streams:
            expected = (expected + 1) / 2
        expected *= 2
    assert mx.allclose(x, mx.array(expected))


def test_devices():
    for device in (mx.cpu, mx.gpu, mx.Device(mx.cpu), mx.Device(mx.gpu), None):
        assert scaled(mx.ones(3), stream=device).tolist() == [2] * 3
    if mx.is_available(mx.gpu):
        with pytest.raises(ValueError, match="stream must be of the CPU, got one of a GPU"):
            scaled(mx.ones(3), stream=mx.new_stream(mx.gpu))


def test_several_threads_at_once():
    wrong = []

    def work(factor):
        with mx.stream(mx.new_stream(mx.cpu)):
            for i in range(10):
                if scaled(mx.ones(8) * i, factor).tolist() != [factor * i] * 8:
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(float(n),)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


READERS = {
    "eval": mx.eval,
    "item": lambda x: x[0].item(),
    "numpy": np.array,
    "repr": repr,
    "async_eval": mx.async_eval,
    "save": lambda x: mx.save("/dev/null", x),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_whoever_needs_a_faulty_kernel_hears_of_it(read):
    bystander = mx.arange(3.0) * 2
    out = scaled(mx.ones(3), kernel=_faulty)
    further = out + bystander
    # It stays wrong, and nobody else is told.
    for _ in range(2):
        with pytest.raises(emulator.Fault, match=r"kernel faulty: .*\(inp\).*faulty\.metal:1"):
            read(further)
        with pytest.raises(emulator.Fault):
            mx.eval(out)
    assert bystander.tolist() == [0, 2, 4]
    assert mx.arange(4).sum().item() == 6


def test_many_failures_leave_nothing_behind():
    for _ in range(30):
        with pytest.raises(emulator.Fault):
            mx.eval(scaled(mx.ones(3), kernel=_faulty) + 1)
    x = mx.ones(8)
    for _ in range(30):
        x = scaled(mx.sqrt(x), 1.0)
    assert x.tolist() == [1] * 8


DESCRIBED = """
    uint i = thread_position_in_grid.x;
    out[i] = inp[elem_to_loc(i, inp_shape, inp_strides, inp_ndim)];
    if (i < uint(inp_ndim)) { shape[i] = inp_shape[i]; strides[i] = inp_strides[i]; }
"""
X = mx.arange(24.0).reshape(2, 3, 4)
VIEWS = {
    "contiguous": (X, [12, 4, 1]),
    "transposed": (X.transpose(2, 0, 1), [1, 12, 4]),
    "slice": (X[:, 1:, ::2], [12, 4, 2]),
    "broadcast": (mx.broadcast_to(X[0, 0], (3, 4)), [0, 1]),
    # Given as a copy: a buffer has no memory in front of its first element.
    "reversed": (X[:, ::-1], [12, 4, 1]),
}


@pytest.mark.parametrize("ensure_row_contiguous", [False, True])
@pytest.mark.parametrize("view", VIEWS)
def test_views(view, ensure_row_contiguous):
    x, strides = VIEWS[view]
    kernel = metal_kernel(
        "described", ["inp"], ["out", "shape", "strides"], DESCRIBED,
        ensure_row_contiguous=ensure_row_contiguous,
    )  # fmt: skip
    mx.eval(x)  # what is evaluated is a view, what is not may become one
    values, shape, seen = kernel(
        inputs=[x],
        grid=(x.size, 1, 1),
        threadgroup=(32, 1, 1),
        output_shapes=[x.shape, (x.ndim,), (x.ndim,)],
        output_dtypes=[x.dtype, mx.int32, mx.int64],
    )
    assert mx.array_equal(values, x)
    assert shape.tolist() == list(x.shape)
    contiguous = [int(np.prod(x.shape[axis + 1 :])) for axis in range(x.ndim)]
    assert seen.tolist() == (contiguous if ensure_row_contiguous else strides)


def test_a_kernel_that_ignores_strides_is_caught():
    ignorant = "uint i = thread_position_in_grid.x; out[i] = inp[i];"

    def run(x, **options):
        kernel = metal_kernel("ignorant", ["inp"], ["out"], ignorant, **options)
        (out,) = kernel(
            inputs=[x],
            grid=(x.size, 1, 1),
            threadgroup=(32, 1, 1),
            output_shapes=[x.shape],
            output_dtypes=[x.dtype],
        )
        return out

    x = X.transpose(2, 0, 1)
    assert mx.array_equal(run(x), x)
    assert run(x, ensure_row_contiguous=False).flatten().tolist() == X.flatten().tolist()
    # It is given the elements of the view only, not all that was allocated for them.
    with pytest.raises(emulator.Fault, match=r"\(inp\)"):
        mx.eval(run(mx.broadcast_to(X[0, 0], (300, 4)), ensure_row_contiguous=False))
