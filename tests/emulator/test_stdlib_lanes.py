"""simd_* and quad_* functions, votes, barriers and atomics."""

import numpy as np
import pytest
from metal_expressions import evaluate
from tensorops_kernels import refuses

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator import Policies

LANES = np.arange(64)
LANE = LANES % 32
X = np.random.default_rng(0).integers(-50, 50, 64).astype(np.int32)


def rows(x, width):
    return x.reshape(-1, width)


def over(x, width, f):
    """f over every group of lanes, its result in all lanes or one a lane."""
    return np.concatenate([np.broadcast_to(f(row), width) for row in rows(x, width)])


def shifted(x, delta, width, keep):
    """Element i - delta of each group; keep(i) says what takes the place of what is outside."""
    out = x.copy()
    for i in range(len(x)):
        source = i % width - delta
        out[i] = x[i - delta] if 0 <= source < width else keep(i)
    return out


def exclusive(f, start):
    return lambda row: np.concatenate([[start], f(row)[:-1]])


@pytest.mark.parametrize(("prefix", "width"), [("simd", 32), ("quad", 4)])
def test_collectives(prefix, width):
    own = lambda i: X[i]  # noqa: E731
    small = np.where(X % 2 == 0, 1, 2).astype(np.int32)
    cases = {
        "_sum(x)": over(X, width, np.sum),
        "_product(s)": over(small, width, lambda r: np.prod(r.astype(np.int32), dtype=np.int32)),
        "_max(x)": over(X, width, np.max),
        "_min(x)": over(X, width, np.min),
        "_and(x)": over(X, width, np.bitwise_and.reduce),
        "_or(x)": over(X, width, np.bitwise_or.reduce),
        "_xor(x)": over(X, width, np.bitwise_xor.reduce),
        "_prefix_inclusive_sum(x)": over(X, width, np.cumsum),
        "_prefix_exclusive_sum(x)": over(X, width, exclusive(np.cumsum, 0)),
        "_prefix_exclusive_product(s % 4)": over(
            small, width, exclusive(lambda r: np.cumprod(r.astype(np.int32), dtype=np.int32), 1)
        ),
        "_shuffle(x, 3)": over(X, width, lambda r: r[3]),
        "_shuffle(x, ushort(i * 7 % WIDTH))": X[LANES // width * width + LANES * 7 % width],
        "_broadcast(x, 2)": over(X, width, lambda r: r[2]),
        "_shuffle_xor(x, 2)": X[LANES ^ 2],
        "_shuffle_down(x, 3)": shifted(X, -3, width, own),
        "_shuffle_up(x, 3)": shifted(X, 3, width, own),
        "_shuffle_rotate_down(x, 3)": over(X, width, lambda r: np.roll(r, -3)),
        "_shuffle_rotate_up(x, 3)": over(X, width, lambda r: np.roll(r, 3)),
        "_shuffle_and_fill_down(x, int(100 + i), 3)": shifted(
            X, -3, width, lambda i: 100 + i + 3 - width
        ),
        "_shuffle_and_fill_up(x, int(100 + i), 3)": shifted(
            X, 3, width, lambda i: 100 + i - 3 + width
        ),
        "_broadcast_first(x)": over(X, width, lambda r: r[0]),
        "_all(x > -100)": np.ones(64),
        "_all(x > 0)": over(X > 0, width, np.all),
        "_any(x > 40)": over(X > 40, width, np.any),
        "_is_first()": LANES % width == 0,
        "_sum(float2(x, 1)).x": over(X, width, np.sum),
        "_max(half(x))": over(X, width, np.max),
        "_shuffle_xor(ushort2(x, 1), 1).y": np.ones(64),
    }
    expressions = [f"int({prefix}{case})".replace("WIDTH", str(width)) for case in cases]
    for order in ("forward", "random"):
        policies = Policies(order=order, seed=2)
        out = evaluate("int", expressions, {"x": X, "s": small}, policies=policies)
        for expression, row, expected in zip(expressions, out, cases.values(), strict=True):
            assert row.tolist() == expected.astype(np.int64).tolist(), expression


def test_fill_within_groups_of_lanes():
    out = evaluate(
        "int",
        [
            "simd_shuffle_and_fill_down(x, int(100 + i), 3, 8)",
            "simd_shuffle_and_fill_up(x, int(100 + i), 3, 8)",
        ],
        {"x": X},
    )
    assert out[0].tolist() == shifted(X, -3, 8, lambda i: 100 + i + 3 - 8).tolist()
    assert out[1].tolist() == shifted(X, 3, 8, lambda i: 100 + i - 3 + 8).tolist()


def test_ballot():
    out = evaluate(
        "ulong", ["ulong(simd_ballot(x > 0))", "ulong(simd_active_threads_mask())"], {"x": X}
    )
    for group in range(2):
        votes = sum(1 << i for i in range(32) if X[32 * group + i] > 0)
        assert (out[0, 32 * group : 32 * group + 32] == votes).all()
    assert (out[1] == 0xFFFFFFFF).all()


def test_sum_of_floats_needs_no_order():
    x = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    out = evaluate("float", ["simd_sum(x)"], {"x": x})
    assert np.allclose(out[0], over(x.astype(np.float64), 32, np.sum), rtol=1e-5)


KERNELS = """
#include <metal_stdlib>
using namespace metal;
kernel void reverse(device int* x [[buffer(0)]], uint i [[thread_index_in_threadgroup]],
                    uint n [[threads_per_threadgroup]]) {
  threadgroup int shared[128];
  shared[i] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[i] = shared[n - 1 - i];
}
kernel void count(device atomic_uint* bins [[buffer(0)]], device atomic<float>* total [[buffer(1)]],
                  device const int* x [[buffer(2)]], device atomic_int* limits [[buffer(3)]],
                  device atomic_ulong* largest [[buffer(4)]], uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(&bins[x[i] & 3], 1, memory_order_relaxed);
  atomic_fetch_add_explicit(total, 0.5f, memory_order_relaxed);
  atomic_fetch_max_explicit(&limits[0], x[i], memory_order_relaxed);
  atomic_fetch_min_explicit(&limits[1], x[i], memory_order_relaxed);
  atomic_fetch_xor_explicit(&limits[2], x[i], memory_order_relaxed);
  atomic_fetch_or_explicit(&limits[3], x[i], memory_order_relaxed);
  atomic_fetch_and_explicit(&limits[4], x[i], memory_order_relaxed);
  int old = atomic_load_explicit(&limits[5], memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(&limits[5], &old, old + 2, memory_order_relaxed,
                                                memory_order_relaxed)) {
  }
  atomic_max_explicit(largest, ulong(x[i] + 100) << 40, memory_order_relaxed);
  if (i == 0) atomic_store_explicit(&limits[6], 7, memory_order_relaxed);
}
"""


def test_barrier_exchanges_through_threadgroup_memory():
    x = np.arange(128, dtype=np.int32)
    launch = emulator.compile(KERNELS).pipeline("reverse").launch({0: x}, (1,), (128,))
    assert (x == np.arange(128)[::-1]).all()
    assert launch.counters["threadgroup_barriers"] == 1
    assert launch.counters["threadgroup_bytes"] == 512


def test_atomics_of_threadgroups_that_run_in_parallel():
    x = np.random.default_rng(2).integers(-90, 90, 4096).astype(np.int32)
    bins, total, largest = np.zeros(4, np.uint32), np.zeros(1, np.float32), np.zeros(1, np.uint64)
    limits = np.array([-(2**31), 2**31 - 1, 0, 0, -1, 0, 0], np.int32)
    kernel = emulator.compile(KERNELS).pipeline("count")
    kernel.launch({0: bins, 1: total, 2: x, 3: limits, 4: largest}, (32,), (128,), os_threads=2)
    assert bins.tolist() == np.bincount(x & 3, minlength=4).tolist()
    assert total[0] == 2048
    folds = [np.bitwise_xor, np.bitwise_or, np.bitwise_and]
    assert limits.tolist() == [x.max(), x.min(), *(f.reduce(x) for f in folds), 8192, 7]
    assert largest[0] == (int(x.max()) + 100) << 40


REFUSED = [
    ("c[0] = simd_sum(true);", "no matching function"),
    ("c[0] = simd_sum(3l);", "no matching function"),
    ("c[0] = simd_xor(c[0]);", "no matching function"),
    ("c[0] = float(simd_sum(bfloat(1.0f)));", "no matching function"),
    ("device atomic<short>* x = (device atomic<short>*)c; x->value = 0;", "needs T to be"),
    (
        "device atomic_float* x = (device atomic_float*)c; "
        "atomic_fetch_max_explicit(x, 1.0f, memory_order_relaxed);",
        "no matching function",
    ),
]


def test_what_metal_refuses():
    refuses(REFUSED)


MATRICES = """
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
kernel void multiply(device const half* a [[buffer(0)]], device const half* b [[buffer(1)]],
                     device float* out [[buffer(2)]], device float* from_lanes [[buffer(3)]],
                     uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_half8x8 left, right;
  simdgroup_load(left, a, 16, ulong2(8, 1));
  simdgroup_load(right, b, 8, ulong2(0, 0), true);
  simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
  simdgroup_multiply_accumulate(sum, left, right, sum);
  simdgroup_store(sum, out, 10, ulong2(2, 0));
  simdgroup_multiply(sum, sum, simdgroup_float8x8(2.0f));
  const short row = (lane / 4 & 4) + lane / 2 % 4, column = (lane / 4 & 2) * 2 + lane % 2 * 2;
  from_lanes[row * 8 + column] = sum.thread_elements()[0];
  from_lanes[row * 8 + column + 1] = sum.thread_elements()[1];
}
"""


def test_simdgroup_matrix():
    random = np.random.default_rng(3)
    a = random.standard_normal((9, 16)).astype(np.float16)
    b = random.standard_normal((8, 8)).astype(np.float16)
    out, lanes = np.zeros((8, 10), np.float32), np.zeros((8, 8), np.float32)
    kernel = emulator.compile(MATRICES).pipeline("multiply")
    launch = kernel.launch({0: a, 1: b, 2: out, 3: lanes}, (1,), (32,))
    expected = a[1:, 8:].astype(np.float64) @ b.T.astype(np.float64) + 1
    assert np.allclose(out[:, 2:], expected, atol=1e-5)
    assert (out[:, :2] == 0).all()
    assert np.allclose(lanes, 2 * expected, atol=1e-5)
    assert launch.counters["matmul_flops"] == 2 * 2 * 8**3


def test_a_matrix_has_one_address():
    source = MATRICES.replace(
        "simdgroup_load(left, a, 16", "simdgroup_load(left, a + lane / 16, 16"
    )
    buffers = {0: np.zeros((10, 16), np.float16), 1: np.zeros((8, 8), np.float16)}
    buffers |= {2: np.zeros((8, 10), np.float32), 3: np.zeros((8, 8), np.float32)}
    kernel = emulator.compile(source).pipeline("multiply")
    with pytest.raises(emulator.Fault, match="matrix_not_uniform"):
        kernel.launch(buffers, (1,), (32,))
