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
TYPES = [mx.bool_, mx.uint8, mx.uint16, mx.uint32, mx.uint64, mx.int8, mx.int16, mx.int32, mx.int64]
TYPES += [mx.float16, mx.bfloat16, mx.float32, mx.complex64]


def call(source, inputs=(), names=(), *, header="", atomic_outputs=False, **options):
    """One output; the rest by default."""
    kernel = metal_kernel(
        "tested", list(names), ["out"], source, header, atomic_outputs=atomic_outputs
    )
    arguments = {"grid": (1, 1, 1), "threadgroup": (32, 1, 1), "output_shapes": [(1,)]}
    arguments |= {"output_dtypes": [mx.float32]} | options
    (out,) = kernel(inputs=list(inputs), **arguments)
    return out


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


def test_every_type_passes_through():
    numbers = [0, 1, 2, 100, 0, 1, 7, 3, 90]
    arrays = [mx.array(numbers).astype(dtype) for dtype in TYPES]
    names = [f"a{i}" for i in range(len(TYPES))]
    copies = "\n".join(f"b{i}[at] = a{i}[at];" for i in range(len(TYPES)))
    kernel = metal_kernel(
        "copies", names, [name.replace("a", "b") for name in names],
        f"uint at = thread_position_in_grid.x;\n{copies}",
    )  # fmt: skip
    outs = kernel(
        inputs=arrays, grid=(9, 1, 1), threadgroup=(9, 1, 1),
        output_shapes=[(9,)] * len(TYPES), output_dtypes=TYPES,
    )  # fmt: skip
    for out, array in zip(outs, arrays, strict=True):
        assert out.dtype == array.dtype
        assert mx.array_equal(out, array), array.dtype


def test_complex_numbers():
    x = mx.array([1 + 2j, 3 - 4j, 1j] * 3)
    out = call(
        "uint i = thread_position_in_grid.x; out[i] = inp[i] * inp[i] + complex64_t(1, 0);",
        [x], ["inp"], grid=(9, 1, 1), output_shapes=[(9,)], output_dtypes=[mx.complex64],
    )  # fmt: skip
    assert mx.allclose(out, x * x + 1)


def test_template_arguments():
    source = "out[0] = sizeof(T) + 10 * N + (FLAG ? 1000 : 2000);"
    template = [("T", mx.bfloat16), ("N", -3), ("FLAG", True)]
    assert call(source, template=template).item() == 2 - 30 + 1000
    template = [("T", mx.int64), ("N", 4), ("FLAG", False)]
    assert call(source, template=template).item() == 8 + 40 + 2000
    with pytest.raises(ValueError, match=r"must be a dtype, a bool or an int of 32 bits, got 0\.5"):
        call(source, template=[("T", mx.int64), ("N", 0.5)])
    with pytest.raises(ValueError, match="32 bits, got 4294967296"):
        call(source, template=[("N", 2**32)])
    with pytest.raises(ValueError, match="of a type that Metal has, got .*float64"):
        call(source, template=[("T", mx.float64)])


def test_scalars_are_references():
    source = "out[0] = a + b; out[1] = c ? d : -1; out[2] = e; out[3] = sizeof(e);"
    half = mx.array(0.5, mx.bfloat16)
    out = call(source, [2, 1.5, True, mx.array(7, mx.uint8), half], "abcde", output_shapes=[(4,)])
    assert out.tolist() == [3.5, 7, 0.5, 2]
    with pytest.raises(TypeError, match="inputs must be arrays or numbers, got "):
        call("out[0] = x[0];", [[1, 2]], "x")


def test_small_inputs_are_in_the_constant_address_space(capsys):
    source = "out[0] = a[0] + b[0] + c;"
    call(source, [mx.ones(7), mx.ones(8), mx.array(1)], "abc", verbose=True)
    text = capsys.readouterr().out
    assert text.startswith("Generated source code for `tested`:\n```\n")
    assert "const constant float* a [[buffer(0)]]" in text
    assert "const device float* b [[buffer(1)]]" in text
    assert "const constant int32_t& c [[buffer(2)]]" in text
    assert "device float* out [[buffer(3)]]" in text and source in text


def test_header_and_atomic_outputs():
    source = """
        uint i = thread_position_in_grid.x;
        atomic_fetch_add_explicit(&out[bin(inp[i])], 1, memory_order_relaxed);
    """
    header = "int bin(int x) { return x % 4; }"
    arguments = {"grid": (100, 1, 1), "output_shapes": [(4,)], "init_value": 0}
    for dtype in (mx.int32, mx.uint32, mx.float32):
        out = call(
            source, [mx.arange(100)], ["inp"], header=header, atomic_outputs=True,
            output_dtypes=[dtype], **arguments,
        )  # fmt: skip
        assert out.tolist() == [25] * 4


def test_outputs_start_with_the_initial_value():
    names = [f"out{i}" for i in range(len(TYPES))]
    kernel = metal_kernel("nothing", [], names, "")
    for value in (1.5, 0.1, 0):
        outs = kernel(
            inputs=[], grid=(1, 1, 1), threadgroup=(1, 1, 1), init_value=value,
            output_shapes=[(2, 3)] * len(TYPES), output_dtypes=TYPES,
        )  # fmt: skip
        for out, dtype in zip(outs, TYPES, strict=True):
            expected = mx.array(value).astype(dtype)
            assert out.dtype == dtype and mx.array_equal(out, mx.full((2, 3), expected)), dtype


def test_what_is_not_written_is_nan():
    source = "out[thread_position_in_grid.x] = 1;"
    out = call(source, grid=(2, 1, 1), output_shapes=[(4,)])
    assert np.isnan(np.array(out)).tolist() == [False, False, True, True]


def test_several_outputs_of_several_types():
    source = """
        uint y = thread_position_in_grid.y;
        more[y] = y;
        out[0] = static_cast<bfloat>(a[1]);
    """
    kernel = metal_kernel("several", ["a"], ["out", "more"], source)
    out, more = kernel(
        inputs=[mx.array([1.5, 2.5])], grid=(1, 3, 1), threadgroup=(1, 3, 1),
        output_shapes=[(), (3, 1)], output_dtypes=[mx.bfloat16, mx.int8],
    )  # fmt: skip
    assert (out.item(), out.dtype, out.shape) == (2.5, mx.bfloat16, ())
    assert (more.tolist(), more.dtype) == ([[0], [1], [2]], mx.int8)


def test_empty_arrays():
    source = "if (inp_shape[0] > 0) out[0] = inp[0];"
    out = call(source, [mx.zeros((0, 3))], ["inp"], output_shapes=[(0, 2)])
    assert out.shape == (0, 2) and out.tolist() == []


def test_the_grid_counts_threads():
    source = """
        if (thread_index_in_threadgroup == 0) {
            out[threadgroup_position_in_grid.x] = threads_per_threadgroup.x;
        }
    """
    sizes = {"output_shapes": [(3,)], "output_dtypes": [mx.int32]}
    out = call(source, grid=(70, 1, 1), threadgroup=(32, 1, 1), **sizes)
    assert out.tolist() == [32, 32, 6]
    # No threadgroup is larger than the grid.
    out = call(source, grid=(7, 1, 1), threadgroup=(32, 1, 1), init_value=0, **sizes)
    assert out.tolist() == [7, 0, 0]


def test_mistakes_name_the_line_of_the_source():
    with pytest.raises(emulator.CompileError, match=r"^tested\.metal:2: .*nothing"):
        call("int x = 0;\nout[0] = nothing;")
    out = call("int x = 0;\n\nout[x + 4] = 1;")
    with pytest.raises(
        emulator.Fault, match=r"kernel tested: .*\(out\), byte 16 of 4.*tested\.metal:3"
    ):
        mx.eval(out)


def test_trace_and_policies():
    source = """
        uint i = thread_position_in_grid.x;
        threadgroup float shared[64];
        shared[i] = i;
        BARRIER;
        out[i] = shared[63 - i];
    """
    barrier = "threadgroup_barrier(mem_flags::mem_threadgroup)"
    arguments = {"inputs": [], "grid": (64, 1, 1), "threadgroup": (64, 1, 1)}
    arguments |= {"output_shapes": [(64,)], "output_dtypes": [mx.float32]}
    good = metal_kernel("good", [], ["out"], source.replace("BARRIER", barrier), trace=True)
    assert good(**arguments)[0].tolist() == list(range(63, -1, -1))
    for order, n_wrong in (("forward", 32), ("reverse", 32)):
        policies = emulator.Policies(order=order)
        bad = metal_kernel("bad", [], ["out"], source.replace("BARRIER", ""), policies=policies)
        assert np.isnan(np.array(bad(**arguments)[0])).sum() == n_wrong
    bad = metal_kernel("bad", [], ["out"], source.replace("BARRIER", ""), trace=True)
    with pytest.raises(emulator.Fault, match="threadgroup"):
        mx.eval(bad(**arguments))


def test_what_only_metal_refuses():
    source = "const device float* p = inp; out[0] = p[0];"

    def first(n_elements, check):
        kernel = metal_kernel("spaces", ["inp"], ["out"], source, check=check)
        (out,) = kernel(
            inputs=[mx.ones(n_elements)], grid=(1, 1, 1), threadgroup=(1, 1, 1),
            output_shapes=[(1,)], output_dtypes=[mx.float32],
        )  # fmt: skip
        return out.item()

    assert first(8, check=True) == first(7, check=False) == 1
    with pytest.raises(emulator.CompileError, match=r"^spaces\.metal:1: .*'const constant float"):
        first(7, check=True)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match=r"inputs must have 1 elements \(x\), got 0"):
        call("", names=["x"])
    with pytest.raises(ValueError, match="output_shapes must have 1 elements"):
        call("", output_shapes=[])
    with pytest.raises(ValueError, match="output_dtypes must have 1 elements"):
        call("", output_dtypes=[])
    with pytest.raises(ValueError, match="of a type that Metal has, got .*float64"):
        call("", output_dtypes=[mx.float64])
    with pytest.raises(ValueError, match=r"grid must be three sizes .*, got \(1, 0, 1\)"):
        call("", grid=(1, 0, 1))
    with pytest.raises(ValueError, match=r"threadgroup must be three sizes .*, got \(32,\)"):
        call("", threadgroup=(32,))
    with pytest.raises(ValueError, match=r"at most 1024 threads, got \(32, 33, 1\)"):
        call("", threadgroup=(32, 33, 1))
    with pytest.raises(ValueError, match="output_names must name"):
        metal_kernel("none", [], [], "")
    with pytest.raises(ValueError, match="must not name grid_origin or grid_size.*got grid_size"):
        metal_kernel("staged", [], ["out"], "out[0] = grid_size.x;")
    metal_kernel("other", [], ["out"], "int my_grid_size = 3; out[0] = my_grid_size;")
    many = [f"a{i}" for i in range(31)]
    with pytest.raises(emulator.CompileError, match="buffer index must be below 31, got 31"):
        call("out[0] = a0[0];", [mx.ones(9)] * 31, many)
    with pytest.raises(ValueError, match="name must be one for a function, got 'a b'"):
        metal_kernel("a b", [], ["out"], "")


def test_compile_options():
    def options(**values):
        return metal_kernel("options", [], ["out"], "", compile_options=values)

    for mode in ("safe", "relaxed", "fast"):
        options(math_mode=mode)
    with pytest.raises(ValueError, match="one of safe, relaxed, fast, got 'wild'"):
        options(math_mode="wild")
    with pytest.raises(ValueError, match="must be a dict with math_mode, got .*'other'"):
        options(other=1)


def test_the_signature_is_that_of_mlx():
    documented = mx.fast.metal_kernel.__doc__.splitlines()[0]
    parameters = inspect.signature(metal_kernel).parameters
    names = [n for n, p in parameters.items() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert [
        part.split(":")[0].strip() for part in documented[13:].split(", ") if ":" in part
    ] == names
