"""Kernel arguments of type tensor, as kernels of Core AI have them."""

import numpy as np
import pytest

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator import Policies

HEAD = """#include <metal_stdlib>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
"""
MATMUL = HEAD + (
    "[[kernel]] void f(tensor<device half, metal::dextents<int, 2>, tensor_handle> a [[buffer(0)]],"
    "    tensor<device half, metal::dextents<int, 2>, tensor_handle> b [[buffer(1)]],"
    "    tensor<device float, metal::dextents<int, 2>, tensor_handle> c [[buffer(2)]],"
    "    uint3 g [[threadgroup_position_in_grid]]) {"
    "  constexpr auto d = matmul2d_descriptor(16, 32, dynamic_extent);"
    "  matmul2d<d, execution_simdgroup> op;"
    "  auto left = a.slice(0, g.y * 16), right = b.slice(g.x * 32, 0);"
    "  auto out = c.slice(g.x * 32, g.y * 16);"
    "  op.run(left, right, out);"
    "}"
)


def handle(kind, rank, name, index):
    return f"tensor<device {kind}, dextents<int, {rank}>, tensor_handle> {name} [[buffer({index})]]"


def kernel(parameters, body, **options):
    text = f"{HEAD}kernel void f({', '.join(parameters)}) {{\n{body}\n}}\n"
    return emulator.compile(text, **options).pipeline("f")


def numbers(*shape, dtype=np.float32):
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


@pytest.mark.parametrize("trace", [False, True])
def test_slices_of_a_matrix_are_innermost_first(trace):
    m, n, k = 40, 70, 50
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((m, k), (k, n)))
    c = np.zeros((m, n), np.float32)
    matmul = emulator.compile(MATMUL, trace=trace).pipeline("f")
    assert [argument.kind for argument in matmul.arguments] == ["tensor"] * 3
    matmul.launch({0: a, 1: b, 2: c}, grid=(3, 3), threadgroup=(32,))
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


def test_rows_of_a_larger_array_are_a_tensor():
    parameters = [handle("float", 2, "x", 0), handle("float", 2, "y", 1)]
    body = """
      for (int j = 0; j < x.get_extent(1); j++)
        for (int i = 0; i < x.get_extent(0); i++) y[i, j] = 2 * x[i, j] + x.get_stride(1);
    """
    whole = np.full((4, 10), -1, np.float32)
    x = numbers(3, 8)
    expected = whole.copy()
    kernel(parameters, body).launch({0: x[:2, 2:7], 1: whole[::2, 1:6]}, grid=(1,))
    expected[::2, 1:6] = 2 * x[:2, 2:7] + 8
    np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize("subscript", ["innermost", "outermost"])
@pytest.mark.parametrize("handle_extents", ["innermost", "outermost"])
def test_orders_that_are_not_known_are_policies(subscript, handle_extents):
    parameters = [handle("int", 3, "x", 0), "device int* out [[buffer(1)]]"]
    body = """
      for (int r = 0; r < 3; r++) { out[r] = x.get_extent(r); out[3 + r] = x.get_stride(r); }
      array<int, 3> at{0, 1, 1};
      out[6] = x[0, 1, 1];
      out[7] = x[at];
      out[8] = x.load(0, 1, 1);
      x.store(-5, 0, 1, 0);
      out[9] = x.slice(0, 1, 1)[0, 0, 0];
    """
    x, out = numbers(2, 3, 4, dtype=np.int32), np.zeros(10, np.int32)
    expected = x.copy()
    policies = Policies(subscript=subscript, handle_extents=handle_extents)
    kernel(parameters, body).launch({0: x, 1: out}, grid=(1,), policies=policies)
    inner = handle_extents == "innermost"
    assert out[:6].tolist() == ([4, 3, 2, 1, 4, 12] if inner else [2, 3, 4, 12, 4, 1])
    # Reversed twice, or not at all, indices are those of NumPy reversed.
    as_given, stored = (
        ((0, 1, 1), (0, 1, 0))
        if inner != (subscript == "innermost")
        else (
            (1, 1, 0),
            (0, 1, 0),
        )
    )
    assert out[6:9].tolist() == [expected[as_given]] * 3
    expected[stored] = -5
    np.testing.assert_array_equal(x, expected)
    assert out[9] == expected[(1, 1, 0) if inner else (0, 1, 1)]


def test_elements_of_a_matrix_under_both_orders():
    parameters = [handle("float", 2, "x", 0), "device float* out [[buffer(1)]]"]
    pipeline = kernel(parameters, "out[0] = x[1, 2]; out[1] = x.get_extent(0);")
    x, out = numbers(4, 5), np.zeros(2, np.float32)
    for subscript, value in (("innermost", x[2, 1]), ("outermost", x[1, 2])):
        policies = Policies(subscript=subscript, handle_extents="outermost")
        pipeline.launch({0: x, 1: out}, grid=(1,), policies=policies)
        assert out.tolist() == [value, 5]


def test_bfloat_bool_and_vectors_of_one_dimension():
    parameters = [
        handle("bfloat", 1, "x", 0),
        handle("bool", 1, "mask", 1),
        handle("float", 1, "out", 2),
        "uint i [[thread_position_in_grid]]",
    ]
    pipeline = kernel(parameters, "out[i] = mask[i] ? float(x[i]) : -1;")
    x = np.array([1.0, 2.5, -3.0], np.float32)
    bits = (x.view(np.uint32) >> 16).astype(np.uint16)
    out = np.zeros(3, np.float32)
    mask = np.array([True, False, True])
    pipeline.launch({0: bits, 1: mask, 2: out}, threads=(3,), threadgroup=(3,))
    assert out.tolist() == [1, -1, -3]


def test_packed_formats_count_elements():
    parameters = [handle("uint4b_format", 2, "x", 0), "device int* out [[buffer(1)]]"]
    body = "for (int r = 0; r < 2; r++) { out[r] = x.get_extent(r); out[2 + r] = x.get_stride(r); }"
    out = np.zeros(4, np.int32)
    kernel(parameters, body).launch({0: np.zeros((5, 8), np.uint8)[:, :6], 1: out}, grid=(1,))
    assert out.tolist() == [12, 5, 1, 16]


def test_an_index_beyond_the_extents_names_the_line():
    parameters = [handle("float", 2, "x", 0), "device float* out [[buffer(1)]]"]
    pipeline = kernel(parameters, "out[0] = x[5, 0];")
    with pytest.raises(emulator.Fault) as raised:
        pipeline.launch({0: numbers(4, 5), 1: np.zeros(1, np.float32)}, grid=(1,))
    (finding,) = raised.value.findings
    assert (finding.kind, finding.place) == (
        "tensor_index",
        f"kernel.metal:{HEAD.count(chr(10)) + 2}",
    )


def test_memory_beyond_the_tensor_is_out_of_bounds():
    parameters = [handle("float", 2, "x", 0), "device float* out [[buffer(1)]]"]
    pipeline = kernel(parameters, "out[0] = (&x[0, 0])[100];")
    with pytest.raises(emulator.Fault, match="device_out_of_bounds.*buffer 0 .x., byte 400 of 80"):
        pipeline.launch({0: numbers(4, 5), 1: np.zeros(1, np.float32)}, grid=(1,))


def test_a_template_with_the_rank_as_parameter():
    text = HEAD + (
        "template <typename T, int R> kernel void f(tensor<device T, dextents<int, R>> x,"
        " device int* out) { out[0] = x.get_extent(R - 1); }"
    )
    library = emulator.compile(text, instantiations={"three": "f<half, 3>"})
    out = np.zeros(1, np.int32)
    library.pipeline("three").launch({0: np.zeros((7, 2, 3), np.float16), 1: out}, grid=(1,))
    assert out[0] == 7


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3, np.float32), "tensor with rank 2 in buffer 0, got 1"),
        (np.zeros((3, 3), np.float16), "tensor with element bytes 4 in buffer 0, got 2"),
    ],
)
def test_a_tensor_of_another_kind_is_a_fault(array, message):
    pipeline = kernel([handle("float", 2, "x", 0)], "x[0, 0] = 1;")
    with pytest.raises(emulator.Fault, match=f"tensor_argument: .*{message}"):
        pipeline.launch({0: array}, grid=(1,))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((3, 4), np.float32).T, "contiguous along the last axis, got strides"),
        (np.zeros((3, 4), np.float32)[::-1], "positive strides of whole elements"),
        (np.float32(1), "must be a writable array, got float32"),
        (np.zeros((), np.float32), "must have 1 to 16 dimensions, got 0"),
        (np.broadcast_to(np.zeros(4, np.float32), (3, 4)), "must be a writable array"),
    ],
)
def test_what_cannot_be_a_tensor_is_a_bad_argument(value, message):
    pipeline = kernel([handle("float", 2, "x", 0)], "x[0, 0] = 1;")
    with pytest.raises(ValueError, match=rf"buffer 0 \(x\) of kernel f .*{message}"):
        pipeline.launch({0: value}, grid=(1,))


def test_inputs_may_be_read_only_where_the_type_is_const():
    x = np.broadcast_to(np.float32(3), (1, 1))
    out = np.zeros(1, np.float32)
    parameters = [handle("const float", 2, "x", 0), "device float* out [[buffer(1)]]"]
    kernel(parameters, "out[0] = x[0, 0];").launch({0: x, 1: out}, grid=(1,))
    assert out[0] == 3


def test_tensors_made_in_the_kernel_cannot_be_arguments():
    inline = "tensor<device float, dextents<int, 2>, tensor_inline> x [[buffer(0)]]"
    with pytest.raises(emulator.CompileError, match="a kernel argument is a tensor_handle"):
        kernel([inline], "x[0, 0] = 1;")
