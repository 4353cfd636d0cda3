"""Cooperative tensors: layouts, access, load and store, reductions, iterators, conversions."""

import numpy as np
import pytest
from tensorops_kernels import LAYOUTS, NAMES, every_layout, normal, run

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator import Policies

DUMP = """kernel void k(device int* rows [[buffer(0)]], device int* columns [[buffer(1)]],
    device int* capacity [[buffer(2)]], uint lane [[thread_index_in_simdgroup]]) {
  constexpr auto desc = matmul2d_descriptor(SHAPE, false, false, RELAXED);
  matmul2d<desc, execution_simdgroup> op;
  auto held = op.GETTER;
  capacity[lane] = held.get_capacity();
  for (int i = 0; i < held.get_capacity(); i++) {
    auto at = held.get_multidimensional_index(i);
    const bool valid = held.is_valid_element(i) && held.is_valid_element(held.get_iterator(i)) &&
                       held.is_valid_element(&held[i]);
    rows[lane * 64 + i] = valid ? at[1] : -1;
    columns[lane * 64 + i] = valid ? at[0] : -1;
  }
}"""
LEFT = "get_left_input_cooperative_tensor<TYPE, TYPE, float>()"
RIGHT = "get_right_input_cooperative_tensor<TYPE, TYPE, float>()"
RESULT = "get_destination_cooperative_tensor<view<TYPE>, view<TYPE>, float>()"


def dump(getter, shape, policies, type="half", relaxed="true"):
    """Rows and columns (lane, slot)."""
    rows, columns = np.full((32, 64), -2, np.int32), np.full((32, 64), -2, np.int32)
    capacity = np.zeros(32, np.int32)
    text = DUMP.replace("GETTER", getter.replace("TYPE", type)).replace("RELAXED", relaxed)
    text = text.replace("SHAPE", ", ".join(map(str, shape)))
    run(text, [rows, columns, capacity], policies=policies)
    assert (capacity == capacity[0]).all()
    return rows[:, : capacity[0]], columns[:, : capacity[0]]


@pytest.mark.parametrize(
    ("getter", "shape", "size"),
    [
        (LEFT, (16, 32, 16), (16, 16)),
        (RIGHT, (16, 32, 16), (16, 32)),
        (RESULT, (16, 32, 16), (16, 32)),
        (RESULT, (8, 16, 16), (8, 16)),
        (RESULT, (32, 40, 16), (32, 40)),
    ],
)
@every_layout
def test_slots_cover_the_tile_once(getter, shape, size, policies):
    rows, columns = dump(getter, shape, policies)
    assert ((rows >= 0) == (columns >= 0)).all()
    held = (rows * size[1] + columns)[rows >= 0]
    assert sorted(held) == list(range(size[0] * size[1]))


LANE = np.arange(32)[:, None]


def test_the_layout_of_m5_is_the_one_that_mlx_writes_out():
    # BaseNAXFrag::get_coord of MLX's steel/gemm/nax.h, fragment after fragment.
    slot = np.arange(16)
    quad = LANE >> 2
    row = ((quad & 4) | ((LANE >> 1) & 3)) + (slot % 8 >> 2) * 8
    column = ((quad & 2) | (LANE & 1)) * 4 + slot % 4 + slot // 8 * 16
    rows, columns = dump(RESULT, (16, 32, 16), Policies(layout="m5"))
    assert (rows == row).all()
    assert (columns == column).all()


@pytest.mark.parametrize(
    ("layout", "type", "relaxed"), [("grid8", "half", "true"), ("m5", "float", "false")]
)
def test_the_grid_is_the_one_dumped_on_m4_pro(layout, type, relaxed):
    slot = np.arange(32)
    a = (LANE & 1) << 1 | (LANE & 8) >> 1
    b = (LANE & 2) >> 1 | (LANE & 4) >> 1 | (LANE & 16) >> 2
    rows, columns = dump(RESULT, (32, 32, 32), Policies(layout=layout), type, relaxed)
    assert (columns == a + np.array([0, 1, 8, 9, 16, 17, 24, 25])[slot % 8]).all()
    assert (rows == b + np.array([0, 8, 16, 24])[slot // 8]).all()


def test_random_layouts_differ_by_seed_and_by_operand():
    first, second = (dump(RESULT, (16, 32, 16), Policies(layout="random", seed=s)) for s in (1, 2))
    assert (first[0] != second[0]).any()
    left = dump(LEFT, (16, 16, 32), Policies(layout="random", seed=1))
    right = dump(RIGHT, (32, 16, 32), Policies(layout="random", seed=1))
    assert left[0].shape != right[0].shape or (left[0] != right[0]).any()
    again = dump(RESULT, (16, 32, 16), Policies(layout="random", seed=1))
    assert (first[0] == again[0]).all()


HELD = """constexpr auto desc = matmul2d_descriptor(16, 32, 16);
  matmul2d<desc, execution_simdgroup> op;
  auto held = op.get_destination_cooperative_tensor<view<half>, view<half>, float>();
"""


@every_layout
def test_load_and_store_at_the_edge(policies):
    text = f"""kernel void k(device float* A [[buffer(0)]], device float* C [[buffer(1)]]) {{
      {HELD}
      view<float> a(A, ext(32, 16)), c(C, ext(20, 9));
      held.load(a);
      held.store(c.slice(0, 0));
    }}"""
    a, c = normal(16, 32, dtype=np.float32), np.zeros((9, 20), np.float32)
    run(text, [a, c], policies=policies)
    assert (c == a[:9, :20]).all()


@every_layout
def test_load_repeats_a_dimension_of_one(policies):
    text = f"""kernel void k(device float* A [[buffer(0)]], device float* C [[buffer(1)]]) {{
      {HELD}
      view<float> row(A, ext(32, 1)), column(A, ext(1, 16), array<int, 2>{{1, 2}});
      held.load(row);
      auto other = op.get_destination_cooperative_tensor<view<half>, view<half>, float>();
      other.load(column);
      for (int i = 0; i < held.get_capacity(); i++) held.set(i, held.get(i) + other.get(i));
      view<float> c(C, ext(32, 16));
      held.store(c);
    }}"""
    a, c = normal(32, dtype=np.float32), np.zeros((16, 32), np.float32)
    run(text, [a, c], policies=policies)
    assert (c == a[None, :] + a[::2][:, None]).all()


@pytest.mark.parametrize(("fresh", "kept"), [("nan", False), ("zero", True)])
def test_what_a_load_finds_outside_is_a_policy(fresh, kept):
    text = f"""kernel void k(device float* A [[buffer(0)]], device float* C [[buffer(1)]]) {{
      {HELD}
      view<float> a(A, ext(30, 16)), c(C, ext(32, 16));
      held.load(a);
      held.store(c);
    }}"""
    a, c = normal(16, 30, dtype=np.float32), np.ones((16, 32), np.float32)
    run(text, [a, c], policies=Policies(fresh=fresh))
    assert (c[:, :30] == a).all()
    assert (c[:, 30:] == 0).all() == kept
    assert np.isnan(c[:, 30:]).all() != kept


REDUCE = """kernel void k(device float* A [[buffer(0)]], device float* rows [[buffer(1)]],
    device float* columns [[buffer(2)]], device float* C [[buffer(3)]]) {
  constexpr auto desc = matmul2d_descriptor(32, 32, 16);
  matmul2d<desc, execution_simdgroup> op;
  auto held = op.get_destination_cooperative_tensor<view<half>, view<half>, float>();
  view<float> a(A, ext(32, 32)), c(C, ext(32, 32));
  held.load(a);
  using in = view<half>;
  auto by_row = op.get_row_reduction_destination_cooperative_tensor<in, in, float>();
  auto by_column = op.get_column_reduction_destination_cooperative_tensor<in, in, float>();
  reduce_rows(held, by_row, reduction_operation::OP, IDENTITY);
  reduce_columns(held, by_column, reduction_operation::OP, IDENTITY);
  tensor<device float, dextents<int, 1>, tensor_inline> r(rows, dextents<int, 1>(32));
  by_row.store(r);
  for (int i = 0; i < by_column.get_capacity(); i++) {
    const int at = by_column.get_multidimensional_index(i)[0];
    if (by_column.is_valid_element(i)) columns[at] = by_column[i];
  }
  if (is_iterator_compatible(held, by_row) && is_iterator_compatible(held, by_column)) {
    for (auto it = held.begin(); it != held.end(); ++it) {
      if (it.is_valid_element()) *it -= *by_row.map_iterator(it) + *by_column.map_iterator(it);
    }
  }
  held.store(c);
}"""


@pytest.mark.parametrize(
    ("operation", "identity", "fold"),
    [
        ("sum", "0.0f", np.sum),
        ("max", "reduction_operation_identity<float>::max_identity", np.max),
        ("min", "INFINITY", np.min),
    ],
)
@every_layout
def test_reductions(operation, identity, fold, policies):
    a = normal(32, 32, dtype=np.float32) - 5
    rows, columns, c = np.zeros(32, np.float32), np.zeros(32, np.float32), np.zeros_like(a)
    text = REDUCE.replace("OP", operation).replace("IDENTITY", identity)
    run(text, [a, rows, columns, c], policies=policies)
    assert np.allclose(rows, fold(a, axis=1), atol=1e-4)
    assert np.allclose(columns, fold(a, axis=0), atol=1e-4)
    assert np.allclose(c, a - rows[:, None] - columns, atol=1e-4)


def test_the_identity_of_a_maximum_defaults_to_zero():
    a = normal(32, 32, dtype=np.float32) - 50
    rows, columns, c = np.ones(32, np.float32), np.ones(32, np.float32), np.zeros_like(a)
    text = REDUCE.replace("OP, IDENTITY", "max")
    run(text, [a, rows, columns, c])
    assert (rows == 0).all()
    assert (columns == 0).all()


def test_copies_of_a_row_must_agree_when_stored():
    text = """kernel void k(device float* rows [[buffer(0)]],
        uint lane [[thread_index_in_simdgroup]]) {
      constexpr auto desc = matmul2d_descriptor(16, 32, 16);
      matmul2d<desc, execution_simdgroup> op;
      using in = view<half>;
      auto line = op.get_row_reduction_destination_cooperative_tensor<in, in, float>();
      for (int i = 0; i < line.get_capacity(); i++) line[i] = lane;
      line.store(tensor<device float, dextents<int, 1>, tensor_inline>(rows, dextents<int, 1>(16)));
    }"""
    with pytest.raises(emulator.Fault, match="row_copies"):
        run(text, [np.zeros(16, np.float32)])


# P = A B in registers, then P C with P converted; or through memory where registers do not fit.
CHAIN = """kernel void k(device float* A [[buffer(0)]], device float* B [[buffer(1)]],
    device float* C [[buffer(2)]], device float* D [[buffer(3)]], device int* taken [[buffer(4)]]) {
  threadgroup float scratch[16 * 32];
  constexpr auto first = matmul2d_descriptor(16, 32, 16);
  constexpr auto second = matmul2d_descriptor(16, 16, 32);
  matmul2d<first, execution_simdgroup> op;
  matmul2d<second, execution_simdgroup> next;
  view<float> a(A, ext(16, 16)), b(B, ext(32, 16)), c(C, ext(16, 32)), d(D, ext(16, 16));
  auto p = op.get_destination_cooperative_tensor<decltype(a), decltype(b), float>();
  op.run(a, b, p);
  auto out = next.get_destination_cooperative_tensor<decltype(p), decltype(c), float>();
  if (ASK next.is_compatible_as_left_input<float, float, float>(p)) {
    auto left = next.get_left_input_cooperative_tensor<float, float, float>(p);
    next.run(left, c, out);
    *taken = 1;
  } else {
    tensor<threadgroup float, ext, tensor_inline> memory(scratch, ext(32, 16));
    p.store(memory);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    auto left = next.get_left_input_cooperative_tensor<float, float, float>();
    left.load(memory);
    next.run(left, c, out);
    *taken = 2;
  }
  out.store(d);
}"""


def chain(text, policies):
    a, b, c = (
        normal(*s, seed=i, dtype=np.float32) for i, s in enumerate([(16, 16), (16, 32), (32, 16)])
    )
    d, taken = np.zeros((16, 16), np.float32), np.zeros(1, np.int32)
    run(text, [a, b, c, d, taken], policies=policies)
    assert np.allclose(d, a.astype(np.float64) @ b @ c, atol=1e-3)
    return taken[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("compatible", [True, False])
def test_conversions_and_the_other_branch(name, compatible):
    base = LAYOUTS[NAMES.index(name)]
    policies = Policies(layout=base.layout, seed=base.seed, compatible=compatible)
    assert chain(CHAIN.replace("ASK", ""), policies) == (1 if compatible else 2)


def test_a_conversion_that_nobody_asked_about_is_found():
    text = CHAIN.replace("ASK", "true ||")
    assert chain(text, Policies()) == 1
    with pytest.raises(emulator.Fault, match="conversion"):
        chain(text, Policies(compatible=False))
