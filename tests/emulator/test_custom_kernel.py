"""`mlx_tensorops.testing.metal_kernel`: the calls of `mx.fast.metal_kernel`."""

import inspect

import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.testing import emulator, metal_kernel

EXP = """
    uint elem = thread_position_in_grid.x;
    T tmp = inp[elem];
    out[elem] = metal::exp(tmp);
"""


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_the_example_of_the_documentation(dtype):
    kernel = metal_kernel(name="myexp", input_names=["inp"], output_names=["out"], source=EXP)
    a = mx.random.normal(shape=(4, 17)).astype(dtype)
    (b,) = kernel(
        inputs=[a],
        template=[("T", dtype)],
        grid=(a.size, 1, 1),
        threadgroup=(256, 1, 1),
        output_shapes=[a.shape],
        output_dtypes=[a.dtype],
    )
    assert b.dtype == dtype and b.shape == a.shape
    assert mx.allclose(b, mx.exp(a), rtol=2e-2 if dtype == mx.bfloat16 else 2e-3)


def test_shapes_strides_and_scalars():
    source = """
        uint i = thread_position_in_grid.x;
        auto at = elem_to_loc(i, inp_shape, inp_strides, inp_ndim);
        out[i] = N * inp[at] + offset + (FLAG ? small[1] : 0);
        if (i == 0) count[0] = inp_ndim;
    """
    kernel = metal_kernel("strided", ["inp", "offset", "small"], ["out", "count"], source)
    x = mx.arange(24).reshape(2, 3, 4).swapaxes(0, 2)
    out, count = kernel(
        inputs=[x, mx.array(100), mx.array([5, 7])],
        template=[("N", 3), ("FLAG", True)],
        grid=(24, 1, 1),
        threadgroup=(32, 1, 1),
        output_shapes=[x.shape, (1,)],
        output_dtypes=[mx.int32, mx.int32],
    )
    assert mx.array_equal(out, 3 * x + 107)
    assert count.item() == 3


def test_header_and_atomic_outputs():
    source = """
        uint i = thread_position_in_grid.x;
        atomic_fetch_add_explicit(&out[bin(inp[i])], 1, memory_order_relaxed);
    """
    kernel = metal_kernel(
        "histogram", ["inp"], ["out"], source, header="int bin(int x) { return x % 4; }",
        atomic_outputs=True,
    )  # fmt: skip
    (out,) = kernel(
        inputs=[mx.arange(100)],
        grid=(100, 1, 1),
        threadgroup=(32, 1, 1),
        output_shapes=[(4,)],
        output_dtypes=[mx.int32],
        init_value=0,
    )
    assert out.tolist() == [25] * 4


def test_what_is_not_written_is_nan():
    kernel = metal_kernel("half", ["inp"], ["out"], "out[thread_position_in_grid.x] = inp[0];")
    (out,) = kernel(
        inputs=[mx.ones(1)],
        grid=(2, 1, 1),
        threadgroup=(1, 1, 1),
        output_shapes=[(4,)],
        output_dtypes=[mx.float32],
    )
    assert np.isnan(np.array(out)).tolist() == [False, False, True, True]


def call(source, inputs=(), names=(), **options):
    arguments = dict(
        inputs=list(inputs), grid=(1, 1, 1), threadgroup=(1, 1, 1), output_shapes=[(1,)],
        output_dtypes=[mx.float32],
    )  # fmt: skip
    return metal_kernel("wrong", list(names), ["out"], source)(**(arguments | options))


def test_mistakes_name_the_line_of_the_source():
    with pytest.raises(emulator.CompileError, match=r"^wrong\.metal:2: .*nothing"):
        call("int x = 0;\nout[0] = nothing;")
    with pytest.raises(
        emulator.Fault, match=r"kernel wrong: .*\(out\), byte 16 of 4.*wrong\.metal:3"
    ):
        call("int x = 0;\n\nout[x + 4] = 1;")


def test_wrong_counts_are_refused():
    with pytest.raises(ValueError, match=r"inputs must have 1 elements \(x\), got 0"):
        call("", names=["x"])
    with pytest.raises(ValueError, match="output_shapes must have 1 elements"):
        call("", output_shapes=[])
    with pytest.raises(ValueError, match="of a type that Metal has, got .*float64"):
        call("", output_dtypes=[mx.float64])
    with pytest.raises(ValueError, match="output_names must name"):
        metal_kernel("none", [], [], "")


def test_the_signature_is_that_of_mlx():
    documented = mx.fast.metal_kernel.__doc__.splitlines()[0]
    parameters = inspect.signature(metal_kernel).parameters
    names = [n for n, p in parameters.items() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert [
        part.split(":")[0].strip() for part in documented[13:].split(", ") if ":" in part
    ] == names
