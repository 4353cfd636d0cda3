"""matmul2d in every execution scope, with operands in memory and in registers, against float64."""

import numpy as np
import pytest
from tensorops_kernels import HEAD, LAYOUTS, every_layout, normal, product, run

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator import Policies

ARGUMENTS = """device half* A [[buffer(0)]], device half* B [[buffer(1)]],
  device float* C [[buffer(2)]], constant int& M [[buffer(3)]], constant int& N [[buffer(4)]],
  constant int& K [[buffer(5)]], uint2 tile [[threadgroup_position_in_grid]]"""
TILED = """
template <int m, int n, int k, bool ta, bool tb, int simdgroups>
[[kernel]] void tiled(ARGUMENTS) {
  view<half> a(A, ta ? ext(M, K) : ext(K, M)), b(B, tb ? ext(K, N) : ext(N, K));
  view<float> c(C, ext(N, M));
  constexpr auto desc = matmul2d_descriptor(m, n, k, ta, tb);
  matmul2d<desc, execution_simdgroups<simdgroups>> op;
  const int row = tile.y * m, col = tile.x * n;
  auto left = ta ? a.slice(row, 0) : a.slice(0, row);
  auto right = tb ? b.slice(0, col) : b.slice(col, 0);
  auto result = c.slice(col, row);
  op.run(left, right, result);
}
""".replace("ARGUMENTS", ARGUMENTS)


@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize(("tile", "simdgroups"), [((64, 32), 4), ((16, 32), 1), ((8, 16), 1)])
def test_tensors_in_memory(transposed, tile, simdgroups):
    m, n, k = 70, 50, 45
    left, right = normal(m, k), normal(k, n, seed=1)
    out = np.full((m, n), np.nan, np.float32)
    flags = ", ".join(str(flag).lower() for flag in transposed)
    library = emulator.compile(
        HEAD + TILED,
        instantiations={
            f"k{i}{s}": f"tiled<{i}, {j}, -1, {flags}, {s}>"
            for (i, j), s in [((64, 32), 4), ((16, 32), 1), ((8, 16), 1)]
        },
    )
    stored = [x.T.copy() if flag else x for x, flag in zip((left, right), transposed, strict=True)]
    grid = (-(-n // tile[1]), -(-m // tile[0]), 1)
    launch = library.pipeline(f"k{tile[0]}{simdgroups}").launch(
        {0: stored[0], 1: stored[1], 2: out, 3: m, 4: n, 5: k}, grid, (32 * simdgroups,)
    )
    assert np.allclose(out, product(left, right), atol=1e-4)
    assert launch.findings == ()
    assert launch.counters["matmul_flops"] == 2 * grid[0] * tile[1] * grid[1] * tile[0] * k
    assert launch.counters["matmul_calls"] == grid[0] * grid[1]


def test_a_single_thread():
    text = """kernel void k(device half* A [[buffer(0)]], device half* B [[buffer(1)]],
        device float* C [[buffer(2)]], uint i [[thread_index_in_threadgroup]]) {
      view<half> a(A + i * 32, ext(16, 2)), b(B, ext(4, 16));
      view<float> c(C + i * 8, ext(4, 2));
      constexpr auto desc = matmul2d_descriptor(2, 4, 16);
      matmul2d<desc, execution_thread>{}.run(a, b, c);
    }"""
    left, right, out = normal(32, 16), normal(16, 4, seed=1), np.zeros((32, 4), np.float32)
    run(text, [left, right, out], threads=16)
    assert np.allclose(out, product(left, right), atol=1e-4)


BIAS = """kernel void k(device half* A [[buffer(0)]], device half* B [[buffer(1)]],
    device float* C [[buffer(2)]], device float* bias [[buffer(3)]],
    uint2 tile [[threadgroup_position_in_grid]]) {
  view<half> a(A, ext(40, 50)), b(B, ext(60, 40));
  view<float> c(C, ext(60, 50));
  constexpr auto desc = matmul2d_descriptor(32, 64, dynamic_length_v<int>);
  matmul2d<desc, execution_simdgroups<SIMDGROUPS>> op;
  auto left = a.slice(0, tile.y * 32), right = b.slice(tile.x * 64, 0);
  auto result = op.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
  op.run(left, right, result);
  for (uint16_t i = 0; i < result.get_capacity(); i++) {
    if (!result.is_valid_element(i)) continue;
    auto at = result.get_multidimensional_index(i);
    const int column = tile.x * 64 + at[0];
    if (column < 60) result[i] = max(result[i] + bias[column], 0.0f);
  }
  result.store(c.slice(tile.x * 64, tile.y * 32));
}"""


@pytest.mark.parametrize("simdgroups", [1, 4])
@every_layout
def test_a_destination_in_registers(simdgroups, policies):
    left, right = normal(50, 40), normal(40, 60, seed=1)
    bias, out = normal(60, seed=2, dtype=np.float32), np.zeros((50, 60), np.float32)
    text = BIAS.replace("SIMDGROUPS", str(simdgroups))
    launch = run(text, [left, right, out, bias], (1, 2, 1), 32 * simdgroups, policies)
    assert np.allclose(out, np.maximum(product(left, right) + bias, 0), atol=1e-4)
    assert launch.findings == ()


INPUTS = """kernel void k(device half* A [[buffer(0)]], device half* B [[buffer(1)]],
    device float* C [[buffer(2)]]) {
  constexpr auto desc = matmul2d_descriptor(M, N, K, TA, TB, RELAXED,
                                            matmul2d_descriptor::mode::multiply_accumulate);
  matmul2d<desc, execution_simdgroup> op;
  view<half> a(A, TA ? ext(M, K) : ext(K, M)), b(B, TB ? ext(K, N) : ext(N, K));
  auto left = op.get_left_input_cooperative_tensor<half, half, float>();
  auto right = op.get_right_input_cooperative_tensor<half, half, float>();
  auto result = op.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
  left.load(a);
  for (uint16_t i = 0; i < right.get_capacity(); i++) {
    auto at = right.get_multidimensional_index(i);
    if (right.is_valid_element(i)) right[i] = B[at[1] * (TB ? K : N) + at[0]];
  }
  for (auto it = result.begin(); it != result.end(); ++it) *it = 1;
  op.run(left, right, result);
  op.run(left, b, result);
  view<float> c(C, ext(N, M));
  result.store(c);
}"""


@pytest.mark.parametrize(
    ("shape", "transposed"),
    [
        ((16, 32, 16), (0, 0)),
        ((16, 16, 32), (0, 1)),
        ((32, 32, 16), (1, 0)),
        ((32, 16, 32), (1, 1)),
    ],
)
@every_layout
def test_inputs_in_registers(shape, transposed, policies):
    m, n, k = shape
    text = INPUTS.replace("RELAXED", "true")
    for name, value in zip(("TA", "TB"), transposed, strict=True):
        text = text.replace(name, "true" if value else "false")
    for name, value in zip("MNK", shape, strict=True):
        text = text.replace(f"{name},", f"{value},").replace(f"{name})", f"{value})")
        text = text.replace(f"{name} :", f"{value} :")
    left, right = normal(m, k), normal(k, n, seed=1)
    out = np.zeros((m, n), np.float32)
    stored = [x.T.copy() if flag else x for x, flag in zip((left, right), transposed, strict=True)]
    launch = run(text, [*stored, out], policies=policies)
    assert np.allclose(out, 2 * product(left, right) + 1, atol=1e-4)
    assert launch.findings == ()


# Like MLX's kernels: the M5 layout written out, in fragments of 16 x 16.
PLANTED = """kernel void k(device half* A [[buffer(0)]], device half* B [[buffer(1)]],
    device float* C [[buffer(2)]], uint lane [[thread_index_in_simdgroup]]) {
  constexpr auto desc = matmul2d_descriptor(16, 32, 16, false, false, true);
  matmul2d<desc, execution_simdgroup> op;
  auto left = op.get_left_input_cooperative_tensor<half, half, float>();
  auto right = op.get_right_input_cooperative_tensor<half, half, float>();
  auto result = op.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
  const int quad = lane >> 2, row = (quad & 4) | ((lane >> 1) & 3);
  const int column = ((quad & 2) | (lane & 1)) * 4;
  for (int i = 0; i < 8; i++) left[i] = A[(row + (i >> 2) * 8) * 16 + column + (i & 3)];
  for (int i = 0; i < 16; i++) {
    right[i] = B[(row + ((i >> 2) & 1) * 8) * 32 + column + (i & 3) + (i >> 3) * 16];
  }
  op.run(left, right, result);
  for (int i = 0; i < 16; i++) {
    C[(row + ((i >> 2) & 1) * 8) * 32 + column + (i & 3) + (i >> 3) * 16] = result[i];
  }
}"""


def test_an_assumed_layout_holds_only_where_it_is_true():
    left, right = normal(16, 16), normal(16, 32, seed=1)
    outcomes = []
    for policies in [*LAYOUTS, *(Policies(layout="random", seed=seed) for seed in range(3, 8))]:
        out = np.zeros((16, 32), np.float32)
        run(PLANTED, [left, right, out], policies=policies)
        outcomes.append(bool(np.allclose(out, product(left, right), atol=1e-4)))
    assert outcomes == [True] + [False] * 8


MODES = """kernel void k(device half* A [[buffer(0)]], device half* B [[buffer(1)]],
    device float* C [[buffer(2)]], device float* held [[buffer(3)]]) {
  constexpr auto desc = matmul2d_descriptor(16, 16, 16, false, false, false,
                                            matmul2d_descriptor::mode::MODE);
  matmul2d<desc, execution_simdgroup> op;
  view<half> a(A, ext(16, 16)), b(B, ext(16, 16));
  view<float> c(C, ext(16, 16)), h(held, ext(16, 16));
  op.run(a, b, c);
  auto result = op.get_destination_cooperative_tensor<decltype(a), decltype(b), float>();
  op.run(a, b, result);
  result.store(h);
}"""


def test_modes_and_their_policies():
    left, right = normal(16, 16), normal(16, 16, seed=1)
    expected = product(left, right)

    def outcome(mode, **policies):
        out, held = np.ones((16, 16), np.float32), np.zeros((16, 16), np.float32)
        run(MODES.replace("MODE", mode), [left, right, out, held], policies=Policies(**policies))
        return out, held

    out, held = outcome("multiply")
    assert np.allclose(out, expected, atol=1e-4)
    assert np.allclose(held, expected, atol=1e-4)
    out, held = outcome("multiply", multiply="accumulate")
    assert np.allclose(out, expected + 1, atol=1e-4)
    assert np.allclose(held, expected, atol=1e-4)
    out, held = outcome("multiply_accumulate")
    assert np.allclose(out, expected + 1, atol=1e-4)
    assert np.isnan(held).all()
    assert np.allclose(outcome("multiply_accumulate", fresh="zero")[1], expected, atol=1e-4)


TAIL = """kernel void k(device half* A [[buffer(0)]], device half* B [[buffer(1)]],
    device float* C [[buffer(2)]]) {
  constexpr auto desc = matmul2d_descriptor(16, 16, DEPTH);
  matmul2d<desc, execution_simdgroup> op;
  view<half> a(A, ext(LEFT, 16)), b(B, ext(16, RIGHT));
  view<float> c(C, ext(16, 16));
  op.run(a, b, c);
}"""


@pytest.mark.parametrize(
    ("depth", "left", "right", "message"),
    [
        ("32", 20, 20, "static_k_extents"),
        ("32", 32, 20, "static_k_extents"),
        ("dynamic_length_v<int>", 20, 32, "dynamic_k_extents"),
        ("dynamic_length_v<int>", 20, 20, None),
        ("32", 32, 32, None),
    ],
)
def test_tails_of_k(depth, left, right, message):
    text = TAIL.replace("DEPTH", depth).replace("LEFT", str(left)).replace("RIGHT", str(right))
    a, b = normal(16, left), normal(right, 16, seed=1)
    k = min(left, right)
    out = np.zeros((16, 16), np.float32)
    run(text, [a, b, out])
    assert np.allclose(out, product(a[:, :k], b[:k]), atol=1e-4)
    trap = Policies(static_k="trap")
    if message is None:
        run(text, [a, b, out], policies=trap)
    else:
        with pytest.raises(emulator.Fault, match=message):
            run(text, [a, b, out], policies=trap)


def test_relaxed_precision_may_cut_float_inputs():
    text = """kernel void k(device float* A [[buffer(0)]], device float* B [[buffer(1)]],
        device float* C [[buffer(2)]]) {
      constexpr auto desc = matmul2d_descriptor(16, 16, 16, false, false, RELAXED);
      view<float> a(A, ext(16, 16)), b(B, ext(16, 16)), c(C, ext(16, 16));
      matmul2d<desc, execution_simdgroup>{}.run(a, b, c);
    }"""
    a, b = normal(16, 16, dtype=np.float32), normal(16, 16, seed=1, dtype=np.float32)
    expected, errors = product(a, b), {}
    for relaxed in ("true", "false"):
        for truncate in (True, False):
            out = np.zeros((16, 16), np.float32)
            policies = Policies(truncate_relaxed=truncate)
            run(text.replace("RELAXED", relaxed), [a, b, out], policies=policies)
            errors[relaxed, truncate] = np.abs(out - expected).max() / np.abs(expected).max()
    cut = errors.pop(("true", True))
    assert 2.0**-13 < cut < 2.0**-9
    assert max(errors.values()) < 1e-6


TYPES = {"half": np.float16, "float": np.float32, "int8_t": np.int8, "uint8_t": np.uint8,
         "int": np.int32}  # fmt: skip


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ("half", "half", "half"),
        ("half", "float", "float"),
        ("float", "half", "float"),
        ("half", "int8_t", "half"),
        ("int8_t", "half", "float"),
        ("float", "uint8_t", "float"),
        ("int8_t", "int8_t", "int"),
        ("uint8_t", "uint8_t", "int"),
    ],
)
def test_element_types(left, right, result):
    text = f"""kernel void k(device {left}* A [[buffer(0)]], device {right}* B [[buffer(1)]],
        device {result}* C [[buffer(2)]]) {{
      constexpr auto desc = matmul2d_descriptor(16, 16, 32);
      view<{left}> a(A, ext(32, 16));
      view<{right}> b(B, ext(16, 32));
      view<{result}> c(C, ext(16, 16));
      matmul2d<desc, execution_simdgroup> op;
      auto held = op.get_destination_cooperative_tensor<decltype(a), decltype(b), {result}>();
      op.run(a, b, held);
      held.store(c);
    }}"""
    random = np.random.default_rng(4)
    a, b = (
        random.integers(-128 if name == "int8_t" else 0, 127, shape).astype(TYPES[name])
        if name.endswith("int8_t")
        else random.standard_normal(shape).astype(TYPES[name])
        for name, shape in ((left, (16, 32)), (right, (32, 16)))
    )
    out = np.zeros((16, 16), TYPES[result])
    run(text, [a, b, out])
    expected = product(a, b)
    if result == "int":
        assert (out == expected).all()
    else:
        tolerance = 1e-3 if result == "half" else 1e-5
        assert np.abs(out - expected).max() <= tolerance * np.abs(expected).max()


def test_bfloat_operands_round_once():
    text = """kernel void k(device bfloat* A [[buffer(0)]], device bfloat* C [[buffer(1)]]) {
      constexpr auto desc = matmul2d_descriptor(16, 16, 16, false, true);
      view<bfloat> a(A, ext(16, 16)), c(C, ext(16, 16));
      matmul2d<desc, execution_simdgroup>{}.run(a, a, c);
    }"""
    values = (normal(16, 16, dtype=np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    out = np.zeros((16, 16), np.uint16)
    run(text, [(values.view(np.uint32) >> 16).astype(np.uint16), out])
    expected = product(values, values.T)
    result = (out.astype(np.uint32) << 16).view(np.float32)
    assert (np.abs(result - expected) <= 2.0**-8 * np.abs(expected) + 1e-5).all()


MISUSE = {
    "execution_scope": "op4.run(a, b, c);",
    "tensor_not_uniform": "view<half> x(A + lane / 16, ext(16, 16)); op.run(x, b, c);",
    "tensor_extents": (
        "view<half> s(A, ext(16, 8)); auto x = s.slice<16, 16>(0, 0); op.run(x, b, c);"
    ),
    "tensor_index": "a[array<int, 2>{16, 0}] = 0;",
    "cooperative_index": (
        "auto r = op.get_destination_cooperative_tensor<view<half>, view<half>, float>();"
        "r[r.get_capacity()] = 0;"
    ),
    "tensor_stride": "view<half> x(A, ext(8, 8), array<int, 2>{2, 16});",
}


@pytest.mark.parametrize("kind", MISUSE)
def test_misuse_is_found(kind):
    text = f"""kernel void k(device half* A [[buffer(0)]], device float* C [[buffer(1)]],
        uint lane [[thread_index_in_simdgroup]]) {{
      constexpr auto desc = matmul2d_descriptor(16, 16, 16);
      matmul2d<desc, execution_simdgroup> op;
      matmul2d<desc, execution_simdgroups<4>> op4;
      view<half> a(A, ext(16, 16)), b(A, ext(16, 16)); view<float> c(C, ext(16, 16));
      {MISUSE[kind]}
    }}"""
    with pytest.raises(emulator.Fault, match=kind):
        run(text, [np.zeros((17, 16), np.float16), np.zeros((16, 16), np.float32)])


def test_some_lanes_only():
    text = """kernel void k(device half* A [[buffer(0)]], device float* C [[buffer(1)]],
        uint lane [[thread_index_in_simdgroup]]) {
      constexpr auto desc = matmul2d_descriptor(16, 16, 16);
      matmul2d<desc, execution_simdgroup> op;
      view<half> a(A, ext(16, 16)); view<float> c(C, ext(16, 16));
      if (lane < 16) op.run(a, a, c);
    }"""
    with pytest.raises(emulator.Fault, match="missing_lanes"):
        run(text, [np.zeros((16, 16), np.float16), np.zeros((16, 16), np.float32)])
