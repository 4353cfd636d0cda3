"""Math, common, relational, integer, geometric and pack functions against NumPy."""

import numpy as np
import pytest
from metal_expressions import evaluate
from tensorops_kernels import refuses

X = np.array([-2.5, -1.0, -0.3, -0.0, 0.0, 0.3, 0.5, 0.9, 1.0, 2.5, 3.5, 7.25], np.float32)
Y = X[::-1].copy()

# Expression of floats x, y, and the same in NumPy. Outside a function's domain both are NaN.
UNARY = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atanh": np.arctanh, "ceil": np.ceil, "cos": np.cos, "cosh": np.cosh,
    "cospi": lambda x: np.cos(np.pi * x), "exp": np.exp, "exp2": np.exp2,
    "exp10": lambda x: 10.0**x, "fabs": np.abs, "floor": np.floor,
    "fract": lambda x: x - np.floor(x),
    "log": np.log, "log2": np.log2, "log10": np.log10, "rint": np.rint,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin, "sinh": np.sinh, "sinpi": lambda x: np.sin(np.pi * x), "sqrt": np.sqrt,
    "tan": np.tan, "tanh": np.tanh, "trunc": np.trunc, "abs": np.abs,
    "saturate": lambda x: np.clip(x, 0, 1),
    "sign": np.sign,
}  # fmt: skip
BINARY = {
    "atan2": np.arctan2, "copysign": np.copysign, "fdim": lambda x, y: np.maximum(x - y, 0),
    "fmax": np.fmax, "fmin": np.fmin, "fmod": np.fmod, "pow": np.power, "max": np.fmax,
    "min": np.fmin, "step": lambda x, y: (y >= x) * 1.0, "divide": np.divide,
}  # fmt: skip


def assert_equal(out, expected, tolerance):
    both = np.isnan(out) & np.isnan(expected)
    infinite = np.isinf(expected)
    assert (both | infinite | np.isclose(out, expected, rtol=tolerance, atol=tolerance)).all()
    assert (out[infinite] == expected[infinite]).all()


@pytest.mark.parametrize(("type", "tolerance"), [("float", 2e-6), ("half", 2e-3)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_math(type, tolerance):
    x, y = X.astype(np.float16).astype(np.float32), Y.astype(np.float16).astype(np.float32)
    convert = f"{type}(x)", f"{type}(y)"
    expressions = [f"{name}({convert[0]})" for name in UNARY]
    expressions += [f"{name}({convert[0]}, {convert[1]})" for name in BINARY]
    # The same through vectors: element 1 of 3.
    expressions += [f"{name}({type}3(0.5, x, 0.25)).y" for name in UNARY]
    expressions += [f"{name}({type}2(1, x), {type}2(1, y)).y" for name in BINARY]
    out = evaluate("float", expressions, {"x": x, "y": y})
    wide = x.astype(np.float64), y.astype(np.float64)
    expected = [f(wide[0]) for f in UNARY.values()] + [f(*wide) for f in BINARY.values()]
    for expression, row, want in zip(expressions, out, 2 * expected, strict=True):
        want = want.astype(np.float16).astype(np.float64) if type == "half" else want
        try:
            assert_equal(row.astype(np.float64), want, tolerance)
        except AssertionError as error:
            raise AssertionError(f"{expression}: {row} is not {want}") from error


CASES = {
    "fma(x, 2.0f, 1.0f)": 2 * X + 1,
    "clamp(x, -1.0f, 1.0f)": np.clip(X, -1, 1),
    "clamp(float2(x), -1.0f, 1.0f).y": np.clip(X, -1, 1),
    "mix(x, 1.0f, 0.25f)": X + (1 - X) * 0.25,
    "smoothstep(0.0f, 1.0f, x)": np.clip(X, 0, 1) ** 2 * (3 - 2 * np.clip(X, 0, 1)),
    "max3(x, 0.0f, 1.0f)": np.maximum(X, 1),
    "median3(x, 0.0f, 1.0f)": np.clip(X, 0, 1),
    "fmedian3(x, 0.0f, 1.0f)": np.clip(X, 0, 1),
    "min(float2(x, 1), 0.5f).x": np.minimum(X, 0.5),
    "ldexp(x, 3)": 8 * X,
    "select(1.0f, 2.0f, x > 0)": np.where(X > 0, 2, 1),
    "select(float2(1), float2(2), float2(x) > 0.0f).y": np.where(X > 0, 2, 1),
    "signbit(x)": np.signbit(X),
    "isfinite(x / 0.0f)": np.zeros(len(X)),
    "isnan(x / 0.0f)": X == 0,
    "isinf(float2(x) / 0.0f).x": X != 0,
    "isnormal(x)": X != 0,
    "isnormal(as_type<half>(ushort(1)))": np.zeros(len(X)),
    "max(NAN, x)": X,
    "dot(float3(x, 1, 2), float3(2, 3, 4))": 2 * X + 11,
    "cross(float3(x, 0, 0), float3(0, 1, 0)).z": X,
    "length(float2(x, 0))": np.abs(X),
    "distance(float2(x, 1), float2(0, 1))": np.abs(X),
    "normalize(float2(3, 4)).y": np.full(len(X), 0.8),
    "reflect(float2(x, 1), float2(0, 1)).y": np.full(len(X), -1),
    "fast::exp(x)": np.exp(X),
    "precise::exp(half(x))": np.exp(X.astype(np.float16).astype(np.float64)),
    "metal::pow(float2(2), 3.0f).x": np.full(len(X), 8),
    "float(ilogb(8.5f))": np.full(len(X), 3),
    "frexp_parts(x)": np.frexp(X)[0] + 100 * np.frexp(X)[1],
    "modf_parts(x)": np.modf(X)[0] + 100 * np.modf(X)[1],
    "sincos_parts(x)": np.sin(X) + 100 * np.cos(X),
    "nextafter(1.0f, 2.0f) - 1.0f": np.full(len(X), 2.0**-23),
    "exp(bfloat(1.0f))": np.full(len(X), np.e),
}
HELPERS = """
float frexp_parts(float x) { int e; float m = frexp(x, e); return m + 100 * e; }
float modf_parts(float x) { float w; float f = modf(x, w); return f + 100 * w; }
float sincos_parts(float x) { float c; float s = sincos(x, c); return s + 100 * c; }
"""


def test_functions_of_several_arguments():
    out = evaluate("float", list(CASES), {"x": X}, HELPERS)
    for (expression, expected), row in zip(CASES.items(), out, strict=True):
        assert np.allclose(row, expected, rtol=2e-6, atol=2e-6), f"{expression}: {row} {expected}"


def test_integers():
    values = np.array([-128, -100, -3, -1, 0, 1, 2, 77, 127, 64], np.int32)
    wide = values.astype(np.int64)
    bits = (values.astype(np.uint32) & 0xFF).astype(np.int64)
    ones = np.array([bin(b).count("1") for b in bits])
    reverse = np.array([int(f"{b:08b}"[::-1], 2) for b in bits])
    cases = {
        "abs(x)": abs(wide),
        "absdiff(x, 100)": abs(wide - 100),
        "addsat(char(x), char(100))": np.minimum(wide + 100, 127),
        "subsat(char(x), char(100))": np.maximum(wide - 100, -128),
        "subsat(uchar(x), uchar(100))": np.maximum(bits - 100, 0),
        "addsat(0xfffffff0u, uint(uchar(x)))": np.minimum(bits + 0xFFFFFFF0, 0xFFFFFFFF),
        "hadd(x, 3)": (wide + 3) >> 1,
        "rhadd(x, 3)": (wide + 4) >> 1,
        "mulhi(x, 1 << 30)": (wide << 30) >> 32,
        "mulhi(ulong(uchar(x)) << 40, 1ul << 40)": bits << 16,
        "madhi(x, 1 << 30, 5)": ((wide << 30) >> 32) + 5,
        "madsat(x, 1 << 30, 5)": np.clip((wide << 30) + 5, -(2**31), 2**31 - 1),
        "mul24(x, 3)": wide * 3,
        "mad24(x, 3, 1)": wide * 3 + 1,
        "popcount(uchar(x))": ones,
        "popcount(char(x))": ones,
        "clz(uchar(x))": 8 - np.array([int(b).bit_length() for b in bits]),
        "ctz(uchar(x))": np.array(
            [8 if b == 0 else (int(b) & -int(b)).bit_length() - 1 for b in bits]
        ),
        "clz(0)": 0 * wide + 32,
        "reverse_bits(uchar(x))": reverse,
        "rotate(uchar(x), uchar(3))": (bits << 3 | bits >> 5) & 0xFF,
        "rotate(uchar2(x), uchar2(11)).y": (bits << 3 | bits >> 5) & 0xFF,
        "extract_bits(uint(uchar(x)), 2, 3)": bits >> 2 & 7,
        "extract_bits(x << 8, 8, 8)": wide,
        "insert_bits(0u, uint(x), 4, 8)": bits << 4,
        "max(x, 3)": np.maximum(wide, 3),
        "clamp(x, -2, 2)": np.clip(wide, -2, 2),
        "min(uint2(uchar(x)), 5u).y": np.minimum(bits, 5),
        "popcount(uint2(uchar(x))).x": ones,
        "numeric_limits<short>::max() + x": wide + 32767,
        "long(numeric_limits<uint>::max())": 0 * wide + 2**32 - 1,
    }
    out = evaluate("long", list(cases), {"x": values})
    for (expression, expected), row in zip(cases.items(), out, strict=True):
        assert row.tolist() == expected.tolist(), expression


def test_pack():
    word = np.array([0, 0xFFFFFFFF, 0x80FF7F01, 0x12345678], np.uint32)
    field = [(word >> s & 0xFF) for s in (0, 8, 16, 24)]
    signed = [
        np.maximum(f.astype(np.uint8).view(np.int8) / 127, -1)
        for f in (f.astype(np.uint8) for f in field)
    ]
    cases = {
        "unpack_unorm4x8_to_float(x).z": field[2] / 255,
        "unpack_snorm4x8_to_float(x).x": signed[0],
        "float(unpack_unorm4x8_to_half(x).y)": (field[1] / 255).astype(np.float16),
        "unpack_unorm2x16_to_float(x).y": (word >> 16) / 65535,
        "unpack_unorm10a2_to_float(x).y": (word >> 10 & 1023) / 1023,
        "unpack_unorm565_to_float(ushort(x)).z": (word & 31) / 31,
        "float(pack_float_to_unorm4x8(unpack_unorm4x8_to_float(x)) == x)": 0 * word + 1,
        "float(pack_float_to_unorm10a2(unpack_unorm10a2_to_float(x)) == x)": 0 * word + 1,
        "float(pack_float_to_unorm2x16(unpack_unorm2x16_to_float(x)) == x)": 0 * word + 1,
        "float(pack_float_to_srgb_unorm4x8(unpack_unorm4x8_srgb_to_float(x)) == x)": 0 * word + 1,
        "float(pack_float_to_snorm4x8(float4(-1, 0, 1, 2)) == 0x7f7f0081u)": 0 * word + 1,
    }
    out = evaluate("float", list(cases), {"x": word})
    for (expression, expected), row in zip(cases.items(), out, strict=True):
        assert np.allclose(row, expected, rtol=1e-6, atol=1e-6), expression


def test_half_arithmetic_rounds_every_operation():
    x = np.array([1.0, 2048.0, 0.1, 60000.0], np.float16)
    out = evaluate("half", ["x + 1.0h - 1.0h", "x * x / x", "x + 1", "half(x * 0.1f)"], {"x": x})
    with np.errstate(over="ignore", invalid="ignore"):
        one = np.float16(1)
        expected = [
            (x + one) - one,
            (x * x) / x,
            x + one,
            (x.astype(np.float32) * np.float32(0.1)).astype(np.float16),
        ]
    for row, want in zip(out, expected, strict=True):
        np.testing.assert_array_equal(row, want)


def test_bfloat_rounds_to_nearest_even_and_converts_one_way():
    x = np.array([1.0, 1.00390625, 1.01171875, 3.4e38, np.inf, np.nan, 1e-40, -7.1], np.float32)
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    rounded[np.isnan(x)] = 0x7FC0
    cases = ["as_type<ushort>(bfloat(x))", "as_type<ushort>(-bfloat(x))"]
    out = evaluate("ushort", cases, {"x": x})
    assert out[0].tolist() == rounded.tolist()
    assert out[1].tolist() == (rounded ^ 0x8000).tolist()
    exact = {
        "float(bfloat(3.0f) * bfloat(0.1f))": 0.30078125,
        "bfloat(3.0f) * 0.5f": 1.5,
        "float(bfloat(2.5f) * 2)": 5,
        "float(x > 0 ? bfloat(2.5f) : 0)": 2.5,
        "x > 0 ? bfloat(2.5f) : 1.0f": 2.5,
        "float(int(bfloat(2.5f)))": 2,
        "float(half(bfloat(2.5f)))": 2.5,
        "float(bfloat(1.0f) < bfloat(2.0f))": 1,
        "float(numeric_limits<bfloat>::max()) > 3.38e38f": 1,
        "float(is_same_v<decltype(bfloat(1) + 1.0f), float>)": 1,
        "float(is_same_v<decltype(bfloat(1) + bfloat(1)), bfloat>)": 1,
    }
    out = evaluate("float", list(exact), {"x": x[:1]})
    assert dict(zip(exact, out[:, 0].tolist(), strict=True)) == exact


REFUSED = [
    ("bfloat x = c[0];", "no viable conversion"),
    ("half h = bfloat(1.0f);", "no viable conversion"),
    ("bfloat x(1.0f); x = x + c[0];", "no viable|not viable"),
    ("int i = 3; c[0] = exp(i);", "ambiguous"),
    ("uint u = 3; c[0] = max(u, 3);", "ambiguous"),
    ("c[0] = as_type<ushort>(c[0]);", "same size"),
    ("c[0] = popcount(c[0]);", "ambiguous|no matching"),
]


def test_what_metal_refuses():
    refuses(REFUSED)
