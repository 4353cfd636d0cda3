"""vec and packed_vec: construction, swizzles, operators; what Metal refuses is refused."""

from itertools import product

import numpy as np
import pytest
from metal_expressions import evaluate
from tensorops_kernels import refuses

X = np.array([1, 2, 3, 5], np.float32)


def components(width):
    for length in (2, 3, 4):
        yield from product(range(width), repeat=length)


@pytest.mark.parametrize("width", [2, 3, 4])
def test_every_swizzle_picks_its_components(width):
    patterns = list(components(width))

    # A swizzle as a number in base 10: component k is k + 1.
    def digits(pattern, names):
        picked = "".join(names[k] for k in pattern)
        return f"number(int{width}({', '.join(str(k + 1) for k in range(width))}).{picked})"

    helpers = """
    template <int N> int number(vec<int, N> v) {
      int n = 0;
      for (int k = 0; k < N; k++) n = 10 * n + v[k];
      return n;
    }
    """
    expressions = [digits(pattern, names) for names in ("xyzw", "rgba") for pattern in patterns]
    out = evaluate("int", expressions, {"x": X[:1]}, helpers)
    expected = [int("".join(str(k + 1) for k in pattern)) for pattern in patterns]
    assert out[:, 0].tolist() == expected * 2


def test_swizzles_are_assignable():
    helpers = """
    float4 assigned(float x) {
      float4 v(x, 2, 3, 4);
      v.wx = v.xy; v.yz += 10.0f; v.b *= 2; v.a++;
      return v;
    }
    float3 from_three(float x) { float3 v(0); v.zxy = float3(x, 5, 6); v.yx = v.xy; return v; }
    float total(float4 v) { return v.x + 100 * v.y + 10000 * v.z + 1000000 * v.w; }
    """
    out = evaluate(
        "float", ["total(assigned(x))", "total(float4(from_three(x), 0))"], {"x": X[:1]}, helpers
    )
    assert out[:, 0].tolist() == [2 + 1200 + 260000 + 2000000, 6 + 500 + 10000]


def test_construction():
    helpers = "float sum(float4 v) { return v.x + 10 * v.y + 100 * v.z + 1000 * v.w; }"
    cases = {
        "sum(float4(x))": 1111,
        "sum(x)": 1111,
        "sum(float4(x, 2, 3, 4))": 4321,
        "sum(float4(float2(x, 2), float2(3, 4)))": 4321,
        "sum(float4(x, int3(2, 3, 4)))": 4321,
        "sum(float4(half3(1.0h, 2.0h, 3.0h), 4))": 4321,
        "sum(float4(packed_float3(float3(x, 2, 3)), 4))": 4321,
        "sum(float4{x, 2, 3, 4})": 4321,
        "sum(float4(uint4(x, 2, 3, 4)))": 4321,
        "float(int4(float4(x, 2.9f, -2.9f, 0)).z)": -2,
        "float(sizeof(float3)) * 100 + sizeof(packed_float3)": 1612,
        "float(alignof(half4)) * 100 + alignof(packed_half4)": 802,
        "float(sizeof(vec<half, 8>)) + vec<half, 8>(2.0h)[7]": 18,
        "vec<float, 8>(1, 2, 3, 4, 5, 6, 7, 8)[5]": 6,
        "as_type<float2>(as_type<uint2>(float2(x, 2))).y": 2,
        "float2{}.x": 0,
    }
    out = evaluate("float", list(cases), {"x": X[:1]}, helpers)
    assert dict(zip(cases, out[:, 0].tolist(), strict=True)) == cases


def test_operators_work_on_elements():
    cases = {
        "(float2(x, 2) + float2(3, 4)).y": 6,
        "(float2(x, 2) * 3).y": 6,
        "(3.0f / float2(x, 2)).y": 1.5,
        "(-float2(x, 2)).y": -2,
        "float((int2(7, -7) / 2).y)": -3,
        "float((int2(7, -7) % 4).y)": -3,
        "float((uint2(6, 5) & 3u).x)": 2,
        "float((~uchar2(1, 2)).x)": 254,
        "float((uint2(1, 2) << uint2(33, 4)).x)": 2,
        "float((ushort2(60000, 1) + ushort2(60000, 1)).x)": 120000 - 65536,
        "float((float2(x, 2) < float2(2, 2)).x)": 1,
        "float((float2(x, 2) == 2.0f).y)": 1,
        "float(any(int2(1, 0) && int2(0, 1)))": 0,
        "float(all(!bool2(false, false)))": 1,
        "(half4(1.0h) * 2.0f + 1)[3]": 3,
        "(packed_float3(float3(x, 2, 3)) + float3(1, 1, 1)).z": 4,
        "(2 * packed_float2(float2(x, 2))).y": 4,
    }
    out = evaluate("float", list(cases), {"x": X[:1]})
    assert dict(zip(cases, out[:, 0].tolist(), strict=True)) == cases


def test_vectors_in_memory():
    source = """
    #include <metal_stdlib>
    using namespace metal;
    kernel void move(device const packed_float3* p [[buffer(0)]], device float3* v [[buffer(1)]],
                     device float4* w [[buffer(2)]], uint i [[thread_position_in_grid]]) {
      v[i] = p[i];
      w[i].zw = p[i].xy;
      w[i].x = v[i].z;
    }
    """
    from mlx_tensorops.testing import emulator

    packed = np.arange(12, dtype=np.float32).reshape(4, 3)
    wide, four = np.zeros((4, 4), np.float32), np.full((4, 4), 7, np.float32)
    emulator.compile(source).pipeline("move").launch({0: packed, 1: wide, 2: four}, (1,), (4,))
    assert (wide[:, :3] == packed).all()
    assert (four[:, 2:] == packed[:, :2]).all()
    assert (four[:, 0] == packed[:, 2]).all()
    assert (four[:, 1] == 7).all()


def test_matrices():
    helpers = """
    constant float2x3 m = float2x3(float3(1, 2, 3), float3(4, 5, 6));
    float3 by_vector() { return m * float2(1, 2); }
    float2 by_row() { return float3(1, 2, 3) * m; }
    float3x3 square() { return m * transpose(m); }
    """
    cases = {
        "by_vector().x": 9,
        "by_row().y": 32,
        "square()[2][0]": 27,
        "determinant(float2x2(1, 2, 3, 4))": -2,
        "determinant(float3x3(2.0f))": 8,
        "determinant(float4x4(2, 0, 0, 1, 0, 3, 0, 0, 0, 0, 4, 0, 1, 0, 0, 5))": 108,
        "(half4x4(2.0h) * half4(1.0h)).w": 2,
        "(m + m * 2.0f)[1].z": 18,
    }
    out = evaluate("float", list(cases), {"x": X[:1]}, helpers)
    assert dict(zip(cases, out[:, 0].tolist(), strict=True)) == cases


REFUSED = [
    ("float4 v(0); v.xx = v.yz;", "repeats a component"),
    ("int4 v(0); v = v * 1.5f;", "invalid operands"),
    ("float4 v(0); thread float& r = v.x;", "cannot bind to a temporary"),
    ("float4 v(0); thread float* r = &v.x;", "cannot take the address|address of property"),
    ("float4 v(float2(0), 1.0f);", "as many values as it has elements"),
    ("float4 v = int4(1);", "no viable conversion"),
    ("float2 v(1); c[0] = v.z;", "no member named 'z'"),
    ("float4 v = float2(0) + float3(0);", "invalid operands"),
]


def test_what_metal_refuses():
    refuses(REFUSED)
