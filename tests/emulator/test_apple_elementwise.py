"""Judges: Apple's kernels that compute element by element, unmodified, against float64."""

import functools
import math

import apple_kernels as ak
import numpy as np
import pytest
from small_floats import e4m3

HEADERS = ("utils.h", "unary_ops.h", "unary.h", "binary_ops.h", "binary.h", "ternary_ops.h")
HEADERS += ("ternary.h", "copy.h", "arange.h")
F, H, B = "float", "half", "bfloat16_t"
erf = np.vectorize(math.erf)
run = functools.partial(ak.launch, by="threads")

# Function, domain, and error in units of the last place of the working type. MLX's own
# approximations (erf, erfinv, expm1) are as good as their sources say; the others are the C
# library's, with a rounding or two around.
UNARY = {
    "Abs": (np.abs, (-4, 4), 0),
    "ArcCos": (np.arccos, (-0.9, 0.9), 4),
    "ArcCosh": (np.arccosh, (1.1, 9), 8),
    "ArcSin": (np.arcsin, (-0.9, 0.9), 4),
    "ArcSinh": (np.arcsinh, (-4, 4), 16),
    "ArcTan": (np.arctan, (-4, 4), 4),
    "ArcTanh": (np.arctanh, (-0.9, 0.9), 16),
    "Ceil": (np.ceil, (-4, 4), 0),
    "Cos": (np.cos, (-1.5, 1.5), 4),
    "Cosh": (np.cosh, (-4, 4), 8),
    "Erf": (erf, (-3, 3), 16),
    "Exp": (np.exp, (-4, 4), 4),
    "Expm1": (np.expm1, (-0.34, 0.34), 8),  # beyond, it takes log 2 for 24 bits of it
    "Floor": (np.floor, (-4, 4), 0),
    "Log": (np.log, (0.1, 0.9), 4),
    "Log2": (np.log2, (0.1, 0.9), 4),
    "Log10": (np.log10, (0.1, 0.9), 4),
    "Log1p": (np.log1p, (0.1, 4), 8),
    "Negative": (np.negative, (-4, 4), 0),
    "Round": (np.rint, (-4, 4), 0),
    "Rsqrt": (lambda x: 1 / np.sqrt(x), (0.1, 4), 4),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), (-4, 4), 8),
    "Sign": (np.sign, (-4, 4), 0),
    "Sin": (np.sin, (-3, 3), 4),
    "Sinh": (np.sinh, (-4, 4), 8),
    "Square": (np.square, (-4, 4), 1),
    "Sqrt": (np.sqrt, (0.1, 4), 2),
    "Tan": (np.tan, (-1.2, 1.2), 8),
    "Tanh": (np.tanh, (-4, 4), 8),
}
# Binary functions of floats, with the error of their result.
BINARY = {
    "Add": (np.add, 1),
    "ArcTan2": (np.arctan2, 4),
    "Divide": (np.divide, 2),
    "FloorDivide": (np.floor_divide, 0),
    "LogAddExp": (np.logaddexp, 8),
    "Maximum": (np.maximum, 0),
    "Minimum": (np.minimum, 0),
    "Multiply": (np.multiply, 1),
    "Power": (lambda x, y: np.abs(x) ** y, 8),
    "Remainder": (np.mod, 2),
    "Subtract": (np.subtract, 1),
}
COMPARISONS = {
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "NaNEqual": lambda x, y: (x == y) | (np.isnan(x) & np.isnan(y)),
    "NotEqual": np.not_equal,
}
INTEGERS = {
    "Add": np.add,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
    "FloorDivide": np.floor_divide,
    "LeftShift": np.left_shift,
    "Remainder": np.mod,
    "RightShift": np.right_shift,
}


@pytest.fixture(scope="module")
def library(apple):
    instances = {f"unary_{kind}_{op}": f"unary_v<{kind}, {kind}, {op}>"
                 for kind in (F, H, B) for op in (*UNARY, "ErfInv")}  # fmt: skip
    instances |= {f"{form}_{op}": f"{form}<{F}, {F}, {op}>" for form in ("unary_v2", "unary_g")
                  for op in ("Negative",)}  # fmt: skip
    instances["invert"] = "unary_v<int, int, BitwiseInvert>"
    instances["not"] = "unary_v<bool, bool, LogicalNot>"
    instances["conjugate"] = "unary_v<complex64_t, complex64_t, Conjugate>"
    instances["complex_exp"] = "unary_v<complex64_t, complex64_t, Exp>"
    instances |= {op: f"unary_v<complex64_t, float, {op}>" for op in ("Real", "Imag")}
    instances["to_fp8"], instances["from_fp8"] = (
        "unary_v<float, uint8_t, ToFP8>",
        "unary_v<uint8_t, float, FromFP8>",
    )
    instances |= {f"binary_{kind}_{op}": f"binary_vv<{kind}, {kind}, {op}>"
                  for kind in (F, H, B) for op in BINARY}  # fmt: skip
    instances |= {f"compare_{op}": f"binary_vv<{F}, bool, {op}>" for op in COMPARISONS}
    instances |= {f"int_{op}": f"binary_vv<int, int, {op}>" for op in INTEGERS}
    instances |= {f"logical_{op}": f"binary_vv<bool, bool, {op}>"
                  for op in ("LogicalAnd", "LogicalOr")}  # fmt: skip
    instances |= {f"binary_{form}": f"binary_{form}<{F}, {F}, Subtract>" for form in FORMS}
    instances |= {f"ternary_{form}_{b}{c}": f"ternary_{form}<{F}, Select, {b}, {c}>"
                  for form in ("v", "v2") for b in ("true", "false")
                  for c in ("true", "false")}  # fmt: skip
    instances |= {f"ternary_{form}": f"ternary_{form}<{F}, Select>"
                  for form in ("g_nd1", "g_nd2", "g_nd3", "g")}  # fmt: skip
    instances |= {f"arange_{kind}": f"arange<{kind}>" for kind in (F, H, "int", "uint8_t")}
    return apple(*HEADERS, **instances)


FORMS = ("ss", "sv", "vs", "vv", "sv2", "vs2", "vv2", "g_nd1", "g_nd2", "g_nd3", "g")


def per_thread(itemsize):
    """WorkPerThread of utils.h."""
    return 8 // itemsize


def elements(kind, n, low=-4.0, high=4.0, seed=0):
    return ak.rounded(np.random.default_rng(seed).uniform(low, high, n), kind)


def check(got, expected, kind, units):
    budget = units * ak.ROUNDING[kind] * np.abs(expected)
    ak.assert_within(got, expected, budget, kind)


@pytest.mark.parametrize("kind", [F, H, B])
@pytest.mark.parametrize("op", UNARY)
def test_unary(library, op, kind):
    function, domain, units = UNARY[op]
    x = elements(kind, 101, *domain)
    out = np.zeros_like(x)
    n = -(-x.size // per_thread(x.itemsize))
    name = f"unary_{kind}_{op}"
    run(library, name, (n,), **{"in": x, "out": out, "size": x.size})
    # The functions may compute in the working type, step by step.
    check(out, function(ak.float32(x).astype(np.float64)), kind, units)


def test_inverse_error_function(library):
    x = elements(F, 101, -0.95, 0.95)
    out = np.zeros_like(x)
    run(library, "unary_float_ErfInv", (51,), **{"in": x, "out": out, "size": 101})
    check(erf(out).astype(np.float32), x.astype(np.float64), F, 64)


def test_unary_forms(library):
    x = elements(F, 7 * 6 * 5).reshape(7, 6, 5)
    out = np.zeros(x.size, np.float32)
    sizes = {"in": x, "out": out, "size": x.size}
    run(library, "unary_v2_Negative", (15, 7), (5, 3), **sizes)
    assert (out == -x.ravel()).all()
    y = x.transpose(2, 0, 1)
    out = np.zeros(y.shape, np.float32)
    shapes = {"in_shape": np.array(y.shape, np.int32), "in_strides": ak.strides(y), "ndim": 3}
    run(library, "unary_g_Negative", y.shape[::-1], (2, 2, 2), **{"in": x, "out": out},
              **shapes)  # fmt: skip
    assert (out == -y).all()


def test_unary_of_other_types(library):
    def unary(name, x, dtype):
        out = np.zeros(x.shape, dtype)
        n = -(-x.size // per_thread(x.itemsize))
        run(library, name, (n,), **{"in": x, "out": out, "size": x.size})
        return out

    random = np.random.default_rng(0)
    ints = random.integers(-(2**31), 2**31, 33).astype(np.int32)
    assert (unary("invert", ints, np.int32) == ~ints).all()
    flags = random.random(33) < 0.5
    assert (unary("not", flags, bool) == ~flags).all()
    values = (random.standard_normal(9) + 1j * random.standard_normal(9)).astype(np.complex64)
    assert (unary("conjugate", values, np.complex64) == values.conj()).all()
    assert (unary("Real", values, np.float32) == values.real).all()
    assert (unary("Imag", values, np.float32) == values.imag).all()
    assert np.allclose(unary("complex_exp", values, np.complex64), np.exp(values), rtol=1e-6)


def test_fp8(library):
    codes = np.array([code for code in range(256) if code & 127 != 127], np.uint8)
    values = np.zeros(codes.size, np.float32)
    n = -(-codes.size // 8)
    run(library, "from_fp8", (n,), **{"in": codes, "out": values, "size": codes.size})
    assert (values == e4m3()[codes]).all()
    back = np.zeros_like(codes)
    n = -(-codes.size // 2)
    run(library, "to_fp8", (n,), **{"in": values, "out": back, "size": codes.size})
    assert (back == codes).all()


@pytest.mark.parametrize("kind", [F, H, B])
@pytest.mark.parametrize("op", BINARY)
def test_binary(library, op, kind):
    function, units = BINARY[op]
    positive = 0.1 if op == "Power" else -4
    a, b = elements(kind, 101, positive, 4, 1), elements(kind, 101, seed=2)
    x, y = (ak.float32(v).astype(np.float64) for v in (a, b))
    if op in ("FloorDivide", "Remainder"):
        # The quotient is rounded first: near an integer it may be another.
        keep = np.abs(x / y - np.rint(x / y)) > 0.05
        a, b, x, y = a[keep], b[keep], x[keep], y[keep]
    c = np.zeros_like(a)
    n = -(-a.size // per_thread(a.itemsize))
    run(library, f"binary_{kind}_{op}", (n,), a=a, b=b, c=c, size=a.size)
    check(c, function(x, y), kind, units * (4 if op == "LogAddExp" else 1))


@pytest.mark.parametrize("op", COMPARISONS)
def test_comparisons(library, op):
    a = np.array([1, 2, 3, np.nan, np.inf, -0.0, np.nan], np.float32)
    b = np.array([1, 3, 2, np.nan, np.inf, 0.0, 1], np.float32)
    c = np.zeros(7, bool)
    run(library, f"compare_{op}", (4,), a=a, b=b, c=c, size=7)
    assert (c == COMPARISONS[op](a, b)).all()


@pytest.mark.parametrize("op", INTEGERS)
def test_integers(library, op):
    random = np.random.default_rng(3)
    a = random.integers(-1000, 1000, 33).astype(np.int32)
    b = random.integers(1, 20, 33).astype(np.int32)
    c = np.zeros_like(a)
    run(library, f"int_{op}", (17,), a=a, b=b, c=c, size=33)
    assert (c == INTEGERS[op](a, b)).all()


def test_logical(library):
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for op, expected in (("LogicalAnd", a & b), ("LogicalOr", a | b)):
        c = np.zeros(4, bool)
        run(library, f"logical_{op}", (1,), a=a, b=b, c=c, size=4)
        assert (c == expected).all()


@pytest.mark.parametrize("form", FORMS)
def test_binary_forms(library, form):
    """Scalars, vectors, grids of two dimensions, and strided arrays of any rank."""
    a, b = elements(F, 105, seed=1).reshape(7, 5, 3), elements(F, 105, seed=2).reshape(7, 5, 3)
    values, sizes, grid = {"a": a, "b": b}, {}, (53,)
    x, y = a.ravel(), b.ravel()
    if form.startswith("g"):
        x, y = a.transpose(2, 0, 1), b.transpose(2, 0, 1)[:, ::-1]
        values["b"] = b[::-1].copy()  # so that its strides are those of a
        rank = int(form[-1]) if form[-1].isdigit() else 3
        x, y = (v if rank == 3 else v[0] if rank == 2 else v[0, 0] for v in (x, y))
        grid, steps = x.shape[::-1], ak.strides(x)
        sizes = {"shape": np.array(x.shape, np.int32), "ndim": 3} if form == "g" else {}
        names = ("a_stride", "b_stride") if rank == 1 else ("a_strides", "b_strides")
        sizes |= dict.fromkeys(names, steps)
    elif form == "ss":
        grid, x, y = (1,), x[:1], y[:1]
    else:
        sizes["size"] = 105
        grid = (9, 6) if form.endswith("2") else grid
        x = x[:1] if form.startswith("s") else x
        y = y[:1] if form[1] == "s" else y
    c = np.zeros(np.broadcast_shapes(x.shape, y.shape), np.float32)
    run(library, f"binary_{form}", grid, (2,) * len(grid), c=c, **values, **sizes)
    assert (c == x - y).all()


def test_two_results(apple):
    """DivMod, of binary_two.h: its kernels have the names of those of binary.h."""
    forms = {form: f"binary_{form}<int, int, DivMod>" for form in FORMS}
    library = apple("utils.h", "binary_ops.h", "binary_two.h", **forms)
    random = np.random.default_rng(4)
    a = random.integers(-99, 99, (4, 5, 6)).astype(np.int32)
    b = random.integers(1, 9, (4, 5, 6)).astype(np.int32)
    for form in FORMS:
        x, y, grid, sizes = a.ravel(), b.ravel(), (60,), {"size": 120}
        if form.startswith("g"):
            rank = int(form[-1]) if form[-1].isdigit() else 3
            x, y = (v.transpose(2, 0, 1)[(0,) * (3 - rank)] for v in (a, b))
            grid, steps = x.shape[::-1], ak.strides(x)
            sizes = {"shape": np.array(x.shape, np.int32), "ndim": 3} if form == "g" else {}
            sizes |= dict.fromkeys([f"{v}_stride" + "s" * (rank > 1) for v in "ab"], steps)
        elif form == "ss":
            x, y, grid, sizes = x[:1], y[:1], (1,), {}
        else:
            grid = (10, 6) if form.endswith("2") else grid
            x = x[:1] if form.startswith("s") else x
            y = y[:1] if form[1] == "s" else y
        c, d = np.zeros((2, *np.broadcast_shapes(x.shape, y.shape)), np.int32)
        run(library, form, grid, (2,) * len(grid), a=a, b=b, c=c, d=d, **sizes)
        assert (c == x // y).all() and (d == x % y).all(), form


@pytest.mark.parametrize("form", ["v", "v2", "g_nd1", "g_nd2", "g_nd3", "g"])
def test_ternary(library, form):
    a = np.random.default_rng(0).random((7, 5, 3)) < 0.5
    b, c = elements(F, 105, seed=1).reshape(7, 5, 3), elements(F, 105, seed=2).reshape(7, 5, 3)
    if form.startswith("v"):
        grid = (53,) if form == "v" else (9, 6)
        for b_scalar, c_scalar in ((0, 0), (0, 1), (1, 0), (1, 1)):
            d = np.zeros((7, 5, 3), np.float32)
            name = f"ternary_{form}_{str(bool(b_scalar)).lower()}{str(bool(c_scalar)).lower()}"
            run(library, name, grid, (2,) * len(grid), a=a, b=b, c=c, d=d, size=105)
            x, y = b.flat[0] if b_scalar else b, c.flat[0] if c_scalar else c
            assert (d == np.where(a, x, y)).all()
        return
    rank = int(form[-1]) if form[-1].isdigit() else 3
    x, y, z = (v.transpose(2, 0, 1)[(0,) * (3 - rank)] for v in (a, b, c))
    d = np.zeros(x.shape, np.float32)
    sizes = {f"{name}_strides": ak.strides(v) for name, v in zip("abc", (x, y, z), strict=True)}
    sizes |= {"shape": np.array(x.shape, np.int32), "ndim": 3} if form == "g" else {}
    grid = x.shape[::-1]
    run(library, f"ternary_{form}", grid, (2,) * rank, a=a, b=b, c=c, d=d, **sizes)
    assert (d == np.where(x, y, z)).all()


def test_arange(library):
    for kind, dtype, start, step in (
        *((F, np.float32, -1.5, 0.25), (H, np.float16, 2, -0.5)),
        *(("int", np.int32, -7, 3), ("uint8_t", np.uint8, 1, 2)),
    ):
        out = np.zeros(40, dtype)
        values = {"start": np.array([start], dtype), "step": np.array([step], dtype)}
        run(library, f"arange_{kind}", (40,), out=out, **values)
        assert (out == (start + step * np.arange(40)).astype(dtype)).all()


COPIES = ("copy_s", "copy_v", "copy_s2", "copy_v2", "copy_g_nd1", "copy_g_nd2", "copy_g_nd3")
COPIES += ("copy_g", "copy_gg_nd1", "copy_gg_nd2", "copy_gg_nd3", "copy_gg", "copy_gg_dynamic_nd1")
COPIES += ("copy_gg_dynamic_nd2", "copy_gg_dynamic_nd3", "copy_gg_dynamic")


@pytest.mark.parametrize("kinds", [(F, H), (H, F), ("int", "uint8_t"), ("bool", F)])
def test_copies(apple, kinds):
    """With conversion; scalars, vectors, strided sources, and destinations with an offset."""
    dtypes = {**ak.DTYPES, "int": np.int32, "uint8_t": np.uint8, "bool": bool}
    source, target = (dtypes[kind] for kind in kinds)
    library = apple("utils.h", "copy.h", **{n: f"{n}<{', '.join(kinds)}>" for n in COPIES})
    base = np.random.default_rng(1).integers(0, 100, (4, 5, 6)).astype(source)
    for name in COPIES:
        rank = int(name[-1]) if "nd" in name else 3
        src, dst = base.transpose(1, 2, 0)[(0,) * (3 - rank)], np.zeros(120, target)
        grid = src.shape[::-1]
        room = np.zeros((12, 16, 20), target)
        view = room[1:, 2:, 3:][::2, ::2, ::2][tuple(slice(0, n) for n in (5, 6, 4))]
        view = view[(0,) * (3 - rank)]
        values = {"src_stride" if rank == 1 else "src_strides": ak.strides(src)}
        if not name.startswith("copy_g"):
            per = per_thread(dst.itemsize)
            grid = (-(-120 // per),) if not name.endswith("2") else (-(-120 // (per * 4)), 4)
            values = {"size": 120}
            src, expected, got = base, base.ravel(), dst
            expected = expected[:1] if name.startswith("copy_s") else expected
        elif name.startswith("copy_gg"):
            values |= {"dst_stride" if rank == 1 else "dst_strides": ak.strides(view)}
            offset = (1 * 16 + 2) * 20 + 3
            values |= {"src_offset": 0, "dst_offset": offset} if "dynamic" in name else {}
            dst, expected, got = room if "dynamic" in name else room.ravel()[offset:], src, view
        else:
            dst = np.zeros(src.shape, target)
            expected, got = src, dst
        if "nd" not in name and name.startswith("copy_g"):
            values |= {"src_shape": np.array(src.shape, np.int32), "ndim": 3}
        run(library, name, grid, (2,) * len(grid), src=base, dst=dst, **values)
        assert (got == expected.astype(target)).all(), name
