"""What Apple's headers refuse to compile does not compile here, with a line of the kernel."""

import itertools

import numpy as np
import pytest
from tensorops_kernels import HEAD, compiles, refuses, run

from mlx_tensorops.testing import emulator

OPERANDS = "view<half> x(a, ext(64, 64)), y(b, ext(64, 64)); view<float> z(c, ext(64, 64));\n"


def one(shape, scope="simdgroup", body="op.run(x, y, z);", flags=""):
    return (
        f"{OPERANDS}constexpr auto desc = matmul2d_descriptor({shape}{flags});\n"
        f"matmul2d<desc, execution_{scope}> op;\n{body}"
    )


LEFT = "auto l = op.get_left_input_cooperative_tensor<half, half, float>();"
RIGHT = "auto r = op.get_right_input_cooperative_tensor<half, half, float>();"
DEST = "auto d = op.get_destination_cooperative_tensor<view<half>, view<half>, float>();"
BOTH = f"{LEFT}{RIGHT}{DEST}op.run(l, r, d);"


def test_legal_tiles_compile():
    """All in one kernel: shapes at the limits of each rule."""
    legal = [
        one(shape) for shape in ("8, 16, 16", "16, 8", "64, 64, 48", "16, 16, (int)dynamic_extent")
    ]
    legal += [one(f"{m}, {n}, 16", "thread") for m, n in [(1, 1), (2, 4), (8, 1), (24, 40)]]
    legal += [
        one(f"{m}, {n}, {k}", body=BOTH)
        for m, n, k in itertools.product((16, 32), repeat=3)
        if 32 in (m, n, k)
    ]
    legal.append(one("16, 48, 64", body=f"{LEFT}op.run(l, y, z);"))
    compiles(legal)


ILLEGAL = {
    "8, 8, 16": "multiple of 16",
    "12, 16, 16": "multiples of 8",
    "16, 20": "multiples of 8",
    "0, 16": "multiples of 8",
    "16, 16, 8": "static K must be a multiple of 16",
    "16, 16, 0": "0 is not dynamic",
    "16, 16, 40": "static K must be a multiple of 16",
}


def test_tiles_of_simdgroups():
    refuses([(one(shape), message) for shape, message in ILLEGAL.items()])


def test_tiles_of_a_thread():
    shapes = {
        "3, 4, 16": "execution_thread",
        "4, 12, 16": "execution_thread",
        "2, 2, 8": "static K",
    }
    refuses([(one(shape, "thread"), message) for shape, message in shapes.items()])


def test_two_cooperative_inputs():
    shapes = ("16, 16, 16", "16, 32, 48", "64, 32, 32", "8, 32, 32")
    refuses([(one(shape, body=BOTH), "16 or 32, and one of them 32") for shape in shapes])


KINDS = """view<float> f(c, ext(64, 64)); view<half> h(a, ext(64, 64));
tensor<const half, ext, tensor_inline> fixed(a, ext(64, 64));
tensor<half, dextents<long, 2>, tensor_inline> wide(a, dextents<long, 2>(64, 64));
tensor<half, dextents<int, 3>, tensor_inline> deep(a, dextents<int, 3>(64, 64, 1));"""
ROW = (
    "auto e = op.get_row_reduction_destination_cooperative_tensor<view<half>, view<half>, float>();"
)
OPERAND_RULES = [
    (one("16, 32, dynamic_length_v<int>", body=LEFT), "static K"),
    (one("16, 32, 16", "simdgroups<4>", LEFT), "execution_simdgroup"),
    (one("16, 16, 16", "thread", DEST), "execution_thread has no cooperative"),
    (one("16, 16", "simdgroups<4>", ROW), "reductions need"),
    *(
        (one("16, 32, 16", body=KINDS + body), message)
        for body, message in [
            (f"{LEFT}{RIGHT}{DEST}op.run(r, l, d);", "left operand must be"),
            (f"{LEFT}op.run(l, y, l);", "destination must be"),
            # The element triple: made for half x half into float, run with another.
            (f"{DEST}op.run(f, y, d);", "Input types must match"),
            (f"{LEFT}op.run(l, y, h);", "Input types must match"),
            ("op.run(fixed, y, z);", "const elements"),
            ("op.run(wide, y, z);", "must be int"),
            ("op.run(deep, y, z);", "rank 2"),
            ("op.run(x.slice(0, 0), y, z);", "no matching member function"),
            ("auto s = x.static_slice<16, 16>(0, 0);", "no member named 'static_slice'"),
            (f"{DEST}auto e = d;", "deleted"),
            (f"{DEST}d.store(x);", "does not convert"),
            (f"{DEST}auto m = d.get_mask(0);", "no member named 'get_mask'"),
            (f"{DEST}{ROW}reduce_columns(d, e);", "kind for this reduction"),
        ]
    ),
]


def test_operands():
    refuses(OPERAND_RULES)


CONVERSION = """
constexpr auto first = matmul2d_descriptor(16, 32, 16);
constexpr auto second = matmul2d_descriptor(SHAPE);
matmul2d<first, execution_simdgroup> op;
matmul2d<second, execution_simdgroup> next;
auto d = op.get_destination_cooperative_tensor<view<half>, view<half>, float>();
auto l = next.get_left_input_cooperative_tensor<ELEMENTS>(d);
"""


def test_conversions():
    cases = [
        ("16, 16, 16", "float, half, float", "shape M x K"),
        ("32, 16, 32", "float, half, float", "shape M x K"),
        ("16, 16, 32, true", "float, half, float", "transposed"),
        ("16, 16, 32", "half, half, float", "keep the element type"),
        ("16, 16, (int)dynamic_extent", "float, half, float", "static K"),
    ]
    refuses(
        [
            (CONVERSION.replace("SHAPE", shape).replace("ELEMENTS", elements), message)
            for shape, elements, message in cases
        ]
    )


FLOATS = ("half", "bfloat", "float")
BYTES = ("int8_t", "uint8_t")
PACKED = ("int4b_format", "uint4b_format", "int2b_format", "uint2b_format")
SMALL = ("metal_fp4_e2m1_format", "metal_fp8_e4m3_format", "metal_fp8_e5m2_format")
TYPES = (*FLOATS, *BYTES, "int", "char", *PACKED, *SMALL)


def table():
    """The combinations of the macOS 27 header, written down one row at a time."""
    rows = {("float", x, "float") for x in FLOATS} | {(x, "float", "float") for x in FLOATS}
    rows |= {(x, x, d) for x in ("half", "bfloat") for d in (x, "float")}
    rows |= {(x, y, d) for x, y in (("half", "bfloat"), ("bfloat", "half")) for d in FLOATS}
    for byte, float_type in itertools.product(BYTES, FLOATS):
        for d in {float_type, "float"}:
            rows |= {(float_type, byte, d), (byte, float_type, d)}
    rows |= {(x, x, "int") for x in BYTES}
    rows |= {(x, y, d) for x in ("half", "bfloat") for y in PACKED for d in (x, "float")}
    rows |= {("int8_t", x, "int") for x in ("int4b_format", "int2b_format")}
    rows |= {("uint8_t", x, "int") for x in ("uint4b_format", "uint2b_format")}
    rows |= {("half", x, d) for x in SMALL for d in ("half", "float")}
    rows |= {(x, x, d) for x in SMALL for d in ("half", "float")}
    return rows


def test_the_table_of_element_types():
    """Every combination of types, evaluated by the compiler in one kernel."""
    names = list(itertools.product(TYPES, repeat=3))
    checks = ", ".join(f"emu::elements_fit<{x}, {y}, {z}>()" for x, y, z in names)
    text = f"""kernel void k(device uchar* out [[buffer(0)]]) {{
      constexpr bool fits[] = {{{checks}}};
      for (int i = 0; i < {len(names)}; i++) out[i] = fits[i];
    }}"""
    out = np.zeros(len(names), np.uint8)
    run(text, [out], metal_version=410)
    assert {name for name, fits in zip(names, out, strict=True) if fits} == table()


def test_packed_types_need_their_version():
    with pytest.raises(emulator.CompileError, match="int2b_format"):
        emulator.compile(HEAD + "kernel void k(device int* x) { int2b_format f; }")
    with pytest.raises(emulator.CompileError, match="mpp"):
        emulator.compile(HEAD + "kernel void k(device int* x) {}", metal_version=320)


PACKED_OPERANDS = """view<half> x(a, ext(64, 64)); view<float> z(c, ext(64, 64));
tensor<device FORMAT, ext, tensor_inline> w(q, ext(64, 64));
constexpr auto desc = matmul2d_descriptor(SHAPE);
matmul2d<desc, execution_simdgroup> op; RUN"""


def test_packed_operands():
    run, bfloats = (
        "op.run(x, w, z);",
        "view<bfloat> g((device bfloat*)a, ext(64, 64)); op.run(g, w, z);",
    )
    right = "auto r = op.get_right_input_cooperative_tensor<half, int4b_format, float>();"
    cases = [
        ("int4b_format", "16, 16, 16", run, "multiple of 32"),
        ("int4b_format", "16, 16, 32", "op.run(w, x, z);", "element types together"),
        ("metal_fp4_e2m1_format", "16, 32, 16", run, "multiple of 32"),
        ("metal_fp8_e4m3_format", "16, 16, 16", bfloats, "element types together"),
        ("int4b_format", "16, 32, 32", right, "cannot be a format type"),
    ]
    text = PACKED_OPERANDS
    refuses(
        [
            (text.replace("FORMAT", name).replace("SHAPE", shape).replace("RUN", body), message)
            for name, shape, body, message in cases
        ],
        metal_version=410,
    )


SCALED = """
using scales = tensor_blockwise<tensor_plane_scales, device metal_fp8_ue8m0_format, BLOCK>;
tensor<device metal_fp8_e4m3_format, ext, tensor_inline, scales>
    w(q, ext(64, 64), array<int, 2>{1, 64}, scales(q));
view<half> x(a, ext(64, 64)); view<float> z(c, ext(64, 64));
constexpr auto desc = matmul2d_descriptor(16, 16, 32, FLAGS);
matmul2d<desc, execution_simdgroup> op; op.run(OPERANDS, z);"""


def test_scale_planes():
    cases = [
        ("32, 1", "false, false", "x, w", "a scaled right operand must be"),
        ("32, 1", "true, true", "w, w", "a scaled left operand must not be transposed"),
        ("16, 1", "false, true", "x, w", "32 elements"),
    ]
    for block, flags, operands, message in cases:
        text = SCALED.replace("BLOCK", block).replace("FLAGS", flags)
        refuses([(text.replace("OPERANDS", operands), message)], metal_version=410)
