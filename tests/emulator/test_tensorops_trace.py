"""The trace build sees what vectors and tensor operations do to memory on behalf of the kernel."""

import numpy as np
import pytest
from tensorops_kernels import HEAD

from mlx_tensorops.testing import emulator

KERNELS = """
kernel void components(device float4* x [[buffer(0)]], device float* y [[buffer(1)]],
                       uint i [[thread_position_in_grid]]) {
  y[i] = x[i].y;
  x[i].zw = 1;
}
kernel void product(device half* A [[buffer(0)]], device half* B [[buffer(1)]],
                    device float* C [[buffer(2)]]) {
  constexpr auto desc = matmul2d_descriptor(16, 32, dynamic_length_v<int>);
  view<half> a(A, ext(20, 16)), b(B, ext(32, 20));
  view<float> c(C, ext(32, 16));
  matmul2d<desc, execution_simdgroup>{}.run(a, b, c);
}
kernel void staged(device half* A [[buffer(0)]], device float* C [[buffer(1)]],
                   uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half copy[256];
  for (int i = lane; i < 256; i += 32) copy[i] = A[i];
  BEFORE
  tensor<threadgroup half, ext, tensor_inline> a(copy, ext(16, 16));
  view<float> c(C, ext(16, 16));
  constexpr auto desc = matmul2d_descriptor(16, 16, 16);
  matmul2d<desc, execution_simdgroup>{}.run(a, a, c);
  AFTER
  C[256 + lane] = C[(lane * 7 + 3) % 256];
}
"""
BEFORE = "simdgroup_barrier(mem_flags::mem_threadgroup);"
AFTER = "simdgroup_barrier(mem_flags::mem_device);"


@pytest.fixture(scope="module")
def library():
    return emulator.compile(HEAD + KERNELS.replace("BEFORE", "").replace("AFTER", ""), trace=True)


def test_a_component_is_all_that_is_accessed(library):
    buffers = {0: np.zeros((8, 4), np.float32), 1: np.zeros(8, np.float32)}
    launch = library.pipeline("components").launch(buffers, (1,), (8,))
    assert launch.buffer_bytes[0] == (8 * 4, 8 * 8)
    assert launch.buffer_bytes[1] == (0, 8 * 4)


def test_an_operation_reads_each_element_once(library):
    buffers = {0: np.zeros((16, 20), np.float16), 1: np.zeros((20, 32), np.float16)}
    buffers[2] = np.zeros((16, 32), np.float32)
    launch = library.pipeline("product").launch(buffers, (1,), (32,))
    assert launch.buffer_bytes[0] == (16 * 20 * 2, 0)
    assert launch.buffer_bytes[1] == (20 * 32 * 2, 0)
    assert launch.buffer_bytes[2] == (0, 16 * 32 * 4)


@pytest.mark.parametrize(
    ("before", "after", "races"),
    [
        (BEFORE, AFTER, set()),
        ("", AFTER, {"threadgroup_race"}),
        (BEFORE, "", {"device_race"}),
        ("simdgroup_barrier(mem_flags::mem_none);", AFTER, {"threadgroup_race"}),
        (BEFORE, "simdgroup_barrier(mem_flags::mem_threadgroup);", {"device_race"}),
    ],
)
def test_barriers_around_operations(before, after, races):
    text = HEAD + KERNELS.replace("BEFORE", before).replace("AFTER", after)
    kernel = emulator.compile(text, trace=True).pipeline("staged")
    buffers = {0: np.zeros(256, np.float16), 1: np.zeros(512, np.float32)}
    launch = kernel.launch(buffers, (1,), (32,), check=False)
    assert {finding.kind for finding in launch.findings} == races
