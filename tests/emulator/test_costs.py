"""Costs of a launch, each against a count by hand."""

import apple_kernels
import numpy as np
import pytest
from apple_nax import ATTENTION_NAX, attention_params
from tensorops_kernels import HEAD

from mlx_tensorops.testing import emulator

SOURCE = """#include <metal_stdlib>
using namespace metal;
struct Params { int n; int unused; };
kernel void costs(const device half* x, device float* y, constant Params& params,
    threadgroup float* scratch [[threadgroup(0)]], device atomic_uint* count,
    uint i [[thread_position_in_threadgroup]], uint group [[threadgroup_position_in_grid]]) {
  threadgroup float all[4];
  scratch[i] = x[group * params.n + i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = simd_sum(scratch[params.n - 1 - i]);
  if (simd_is_first()) all[i / 32] = sum;
  simdgroup_barrier(mem_flags::mem_none);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i == 0) {
    y[group] = all[0] + all[1];
    atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);
  }
}
"""


def test_a_kernel_counted_by_hand():
    """3 threadgroups of 64 threads, which are 2 simdgroups."""
    kernel = emulator.compile(SOURCE, trace=True).pipeline("costs")
    x, y, count = np.ones((3, 64), np.float16), np.zeros(3, np.float32), np.zeros(1, np.uint32)
    params = np.array([64, 0], np.int32)
    launch = kernel.launch(
        {0: x, 1: y, 2: params, 3: count}, (3,), (64,), threadgroup_memory={0: 256}
    )
    assert y.tolist() == [64, 64, 64]
    threads = 3 * 64
    assert launch.buffer_bytes == {
        0: (2 * threads, 0),
        1: (0, 4 * 3),
        2: (4 * 2 * threads, 0),  # params.n is read twice
        3: (0, 4 * 3),  # an atomic operation counts as a store
    }
    assert launch.buffer_sizes == {0: 384, 1: 12, 2: 8, 3: 4}
    assert launch.constant_buffers == {2}
    assert launch.counters == {
        **dict.fromkeys(("matmul_flops", "simdgroup_matrix_flops", "strict_float_flops"), 0),
        **dict.fromkeys(("integer_flops", "matmul_calls"), 0),
        "threadgroup_barriers": 2 * 3,
        "simdgroup_barriers": 2 * 3,
        "quadgroup_barriers": 0,
        "simd_ops": 2 * 2 * 3,  # simd_sum and simd_is_first
        "threadgroup_bytes": 256 + 16,
        "threadgroup_read_bytes": 4 * threads + 3 * 8,
        "threadgroup_written_bytes": 4 * threads + 3 * 2 * 4,
        "device_read_bytes": 2 * threads + 8 * threads,
        "device_written_bytes": 12 + 12,
    }


def test_attention_nax_counted_by_hand(apple):
    """L = S = 128, D = 64, float: 2 threadgroups of 4 simdgroups with 16 rows of Q each."""
    library = emulator.compile(
        apple_kernels.source(*ATTENTION_NAX),
        include_dirs=[apple_kernels.include_folder()],
        instantiations={"attention": "attention_nax<float, 64, 32, 64, 64, 4, 1, bool, float>"},
        trace=True,
    )
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1, 128, 64)).astype(np.float32)
    out = np.zeros_like(q)
    constants = {200: True, 201: True, 300: False, 301: False, 302: False, 303: False}
    params = attention_params((1, 1, 1, 128, 64), 128, (64, 32))
    launch = library.pipeline("attention", constants).launch(
        {0: q, 1: k, 2: v, 3: out, 4: params}, (2, 1, 1), (32, 4, 1)
    )
    size = 128 * 64 * 4
    parameters = launch.buffer_bytes[4]
    assert launch.buffer_bytes == {
        0: (4 * size, 0),  # Q is read anew for each of 128 / 32 tiles of keys
        1: (8 * size, 0),  # K and V are read by each of the 8 simdgroups
        2: (8 * size, 0),
        3: (0, size),
        4: parameters,
    }
    assert (4 * size, 8 * size, size) == (131072, 262144, 32768)
    assert launch.constant_buffers == {4} and parameters[0] > 0 == parameters[1]
    # Two products of 2 L S D each; MLX asks for relaxed_precision.
    assert launch.counters["matmul_flops"] == 2 * 2 * 128 * 128 * 64
    assert launch.counters["strict_float_flops"] == 0


MATMUL = """
kernel void k(device LEFT* A, device RIGHT* B, device INTO* C) {
  view<LEFT> a(A, ext(24, 16));
  view<RIGHT> b(B, ext(32, 24));
  view<INTO> c(C, ext(32, 16));
  constexpr auto desc = matmul2d_descriptor(16, 32, dynamic_length_v<int>, false, false, RELAXED);
  matmul2d<desc, execution_simdgroup> op;
  op.run(a, b, c);
}
"""
FLOPS = 2 * 16 * 32 * 24


@pytest.mark.parametrize(
    ("left", "right", "into", "relaxed", "apart"),
    [
        ("half", "half", "float", False, None),
        ("bfloat", "half", "float", True, None),
        ("float", "float", "float", True, None),
        ("float", "float", "float", False, "strict_float_flops"),
        ("half", "float", "float", False, "strict_float_flops"),
        ("int8_t", "int8_t", "int32_t", False, "integer_flops"),
        ("int8_t", "half", "float", False, None),
    ],
)
def test_operations_by_their_rate(left, right, into, relaxed, apart):
    defines = {"LEFT": left, "RIGHT": right, "INTO": into, "RELAXED": str(relaxed).lower()}
    text = MATMUL
    for name, value in defines.items():
        text = text.replace(name, value)
    bytes_of = {"half": 2, "bfloat": 2, "float": 4, "int8_t": 1, "int32_t": 4}
    sizes = zip((left, right, into), (16 * 24, 24 * 32, 16 * 32), strict=True)
    buffers = {i: np.zeros(n * bytes_of[t], np.uint8) for i, (t, n) in enumerate(sizes)}
    library = emulator.compile(HEAD + text, trace=True)
    launch = library.pipeline("k").launch(buffers, (1,), (32,))
    parts = dict.fromkeys(("simdgroup_matrix_flops", "strict_float_flops", "integer_flops"), 0)
    parts |= {apart: FLOPS} if apart else {}
    assert launch.counters["matmul_flops"] == FLOPS
    assert {name: launch.counters[name] for name in parts} == parts
    # What an operation reads and writes counts as that of its simdgroup, once.
    assert launch.buffer_bytes == {
        0: (16 * 24 * bytes_of[left], 0),
        1: (24 * 32 * bytes_of[right], 0),
        2: (0, 16 * 32 * bytes_of[into]),
    }


def test_simdgroup_matrix_operations():
    source = """#include <metal_stdlib>
using namespace metal;
kernel void k(const device float* a, const device float* b, device float* c) {
  simdgroup_float8x8 x, y, z;
  simdgroup_load(x, a);
  simdgroup_load(y, b);
  simdgroup_multiply(z, x, y);
  simdgroup_store(z, c);
}
"""
    buffers = {i: np.zeros((8, 8), np.float32) for i in range(3)}
    kernel = emulator.compile(source, trace=True).pipeline("k")
    launch = kernel.launch(buffers, (5,), (32,), check=False)
    assert launch.counters["matmul_flops"] == 5 * 2 * 8**3
    assert launch.counters["simdgroup_matrix_flops"] == 5 * 2 * 8**3
    assert launch.buffer_bytes == {0: (5 * 256, 0), 1: (5 * 256, 0), 2: (0, 5 * 256)}
