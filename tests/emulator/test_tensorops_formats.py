"""Operands of packed integers, fp4 and fp8, and E8M0 scales, against values spelled out here."""

import numpy as np
import pytest
from metal_expressions import evaluate
from small_floats import e2m1, e4m3, e5m2, packed
from tensorops_kernels import HEAD, normal, product, run

from mlx_tensorops.testing import emulator

FORMATS = {
    "int4b_format": (4, np.concatenate([np.arange(8), np.arange(-8, 0)])),
    "uint4b_format": (4, np.arange(16)),
    "int2b_format": (2, np.array([0, 1, -2, -1])),
    "uint2b_format": (2, np.arange(4)),
    "metal_fp4_e2m1_format": (4, e2m1()),
    "metal_fp8_e4m3_format": (8, e4m3()),
    "metal_fp8_e5m2_format": (8, e5m2()),
}


def codes_of(name, shape, seed=0):
    bits, values = FORMATS[name]
    finite = np.flatnonzero(np.isfinite(values) & (np.abs(values) < 1000))
    codes = np.random.default_rng(seed).choice(finite, shape)
    return packed(codes, bits), values[codes]


@pytest.mark.parametrize("name", FORMATS)
def test_a_packed_right_operand(name):
    text = f"""kernel void k(device half* A [[buffer(0)]], device uchar* B [[buffer(1)]],
        device float* C [[buffer(2)]], uint tile [[threadgroup_position_in_grid]]) {{
      constexpr auto desc = matmul2d_descriptor(16, 32, 32, false, true);
      view<half> a(A, ext(32, 20)); view<float> c(C, ext(60, 20));
      tensor<device {name}, ext, tensor_inline> b(B, ext(32, 60));
      auto right = b.slice(0, tile % 2 * 32);
      auto left = a.slice(0, tile / 2 * 16);
      auto result = c.slice(tile % 2 * 32, tile / 2 * 16);
      matmul2d<desc, execution_simdgroup>{{}}.run(left, right, result);
    }}"""
    b, values = codes_of(name, (60, 32))
    a, out = normal(20, 32), np.zeros((20, 60), np.float32)
    run(text, [a, b, out], (4, 1, 1), metal_version=410)
    expected = product(a, values.T)
    assert np.abs(out - expected).max() <= 1e-5 * np.abs(expected).max()


def test_bytes_times_nibbles_are_exact_integers():
    text = """kernel void k(device int8_t* A [[buffer(0)]], device uchar* B [[buffer(1)]],
        device int* C [[buffer(2)]]) {
      constexpr auto desc = matmul2d_descriptor(16, 32, 32, false, true);
      matmul2d<desc, execution_simdgroup> op;
      auto left = op.get_left_input_cooperative_tensor<int8_t, int4b_format, int>();
      view<int8_t> a(A, ext(32, 16)); view<int> c(C, ext(32, 16));
      tensor<device int4b_format, ext, tensor_inline> b(B, ext(32, 32));
      left.load(a);
      auto d = op.get_destination_cooperative_tensor<decltype(left), decltype(b), int>();
      op.run(left, b, d);
      d.store(c);
    }"""
    b, values = codes_of("int4b_format", (32, 32))
    a = np.random.default_rng(1).integers(-128, 128, (16, 32)).astype(np.int8)
    out = np.zeros((16, 32), np.int32)
    run(text, [a, b, out])
    assert (out == a.astype(np.int64) @ values.T).all()


def test_scales_apply_to_blocks_of_32_along_k():
    text = """
    using scales = tensor_blockwise<tensor_plane_scales, device metal_fp8_ue8m0_format, 32, 1>;
    template <class T> using scaled = tensor<device T, ext, tensor_inline, scales>;
    kernel void k(device uchar* A [[buffer(0)]], device uchar* as [[buffer(1)]],
        device uchar* B [[buffer(2)]], device uchar* bs [[buffer(3)]],
        device float* C [[buffer(4)]],
        uint tile [[threadgroup_position_in_grid]]) {
      constexpr auto desc = matmul2d_descriptor(16, 32, 32, false, true, false,
                                                matmul2d_descriptor::mode::multiply_accumulate);
      scaled<metal_fp8_e4m3_format> a(A, ext(128, 32), array<int, 2>{1, 128}, scales(as));
      scaled<metal_fp8_e4m3_format> b(B, ext(128, 32), array<int, 2>{1, 128}, scales(bs));
      view<float> c(C, ext(32, 32));
      matmul2d<desc, execution_simdgroup> op;
      auto result = c.slice(0, tile * 16);
      for (int k = 0; k < 128; k += 32) {
        auto left = a.slice<32, 16>(k, tile * 16);
        auto right = b.slice<32, 32>(k, 0);
        op.run(left, right, result);
      }
    }"""
    (a, a_values), (b, b_values) = (codes_of("metal_fp8_e4m3_format", (32, 128), s) for s in (1, 2))
    a_scales, b_scales = np.random.default_rng(3).integers(120, 132, (2, 32, 4)).astype(np.uint8)
    out = np.zeros((32, 32), np.float32)
    run(text, [a, a_scales, b, b_scales, out], (2, 1, 1), metal_version=410)
    spread = [np.repeat(2.0 ** (s.astype(int) - 127), 32, axis=1) for s in (a_scales, b_scales)]
    expected = (a_values * spread[0]) @ (b_values * spread[1]).T
    assert np.abs(out - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(("kind", "width"), [("fp8_e4m3", 8), ("fp8_e5m2", 8), ("fp4_e2m1", 4)])
def test_pack_and_unpack(kind, width):
    name = f"metal_{kind}_format"
    values = FORMATS[name][1]
    finite = np.unique(values[np.isfinite(values)])
    middles = (finite[1:] + finite[:-1]) / 2
    x = np.concatenate([finite, middles, middles * 1.001, [1e6, -1e6]]).astype(np.float32)
    count = len(x) // 4 * 4
    x = x[:count]
    text = (
        HEAD
        + f"""kernel void k(device const float4* x [[buffer(0)]], device float4* y [[buffer(1)]],
        uint i [[thread_position_in_grid]]) {{
      auto packed = pack<{name}>(x[i]);
      packed_metal_{kind}<4> copy(packed.as_storage_type());
      y[i] = unpack<float>(copy);
    }}"""
    )
    y = np.zeros_like(x)
    emulator.compile(text, metal_version=410).pipeline("k").launch(
        {0: x, 1: y}, (count // 4,), (1,)
    )
    nearest = np.abs(finite[None, :] - np.clip(x, finite[0], finite[-1])[:, None])
    assert np.allclose(
        np.abs(y - np.clip(x, finite[0], finite[-1])), nearest.min(axis=1), rtol=1e-6
    )


def test_a_tensor_counts_elements_not_bytes():
    out = evaluate(
        "int",
        ["strides(1)", "strides(0)"],
        {"x": np.zeros(1, np.int32)},
        """
        #include <metal_tensor>
        int strides(int r) {
          tensor<int4b_format, dextents<int, 2>, tensor_inline> t(nullptr, dextents<int, 2>(64, 8));
          return t.slice(32, 1).get_stride(r);
        }""",
    )
    assert out[:, 0].tolist() == [64, 1]
