"""Libraries that follow values: every use of what was never set is found, and nothing else."""

import apple_kernels as ak
import numpy as np
import pytest
from apple_launches import CASES

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator import Policies

HEAD = """#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
constexpr constant auto d = matmul2d_descriptor(16, 32, 16);
using matrix_view = tensor<device half, dextents<int, 2>, tensor_inline>;
"""
SIGNATURE = (
    "const device float* x [[buffer(0)]], device float* y [[buffer(1)]],"
    " uint i [[thread_index_in_threadgroup]]"
)
STORE, USE = "store to buffer 1 of a value", "a branch or an address"
COOPERATIVE = (
    "matmul2d<d, execution_simdgroup> op; auto c = "
    "op.get_destination_cooperative_tensor<matrix_view, matrix_view, float>();"
)
# Name and lines of a kernel, the last of which is wrong; what is said, and about which variable.
PLANTED = [
    ("variable", ["float f; if (x[i] > 3) f = x[i];", "y[i] = 2 * f;"], STORE, "f"),
    ("branch", ["bool b; if (x[i] > 3) b = true;", "if (b) y[i] = 1;"], USE, "b"),
    (
        "bound",
        ["int n; if (x[i] > 3) n = 2;", "for (int k = 0; k < n; k++) y[k & 7] = 1;"],
        USE,
        "n",
    ),
    ("index", ["int n; if (x[i] > 3) n = 2;", "y[0] = x[n & 7];"], USE, "n"),
    ("choice", ["int n; if (x[i] > 3) n = 2;", "y[i] = n & 4 ? 1 : 2;"], STORE, "n"),
    (
        "element",
        ["float a[4]; for (int k = 0; k < 3; k++) a[k] = k;", "y[i] = a[i & 3];"],
        STORE,
        "a",
    ),
    ("component", ["float4 v; v.xyz = x[i];", "y[i] = v.w;"], STORE, "v"),
    ("member", ["struct { float a, b; } s; s.a = 1;", "y[i] = s.a + s.b;"], STORE, "s"),
    ("half_sum", ["half h; h += half(x[i]);", "y[i] = h;"], STORE, "h"),
    ("bfloat_sum", ["bfloat h; float sum = h + 1.0f;", "y[i] = sum;"], STORE, "h"),
    (
        "second_round",
        ["for (int k = 0; k < 2; k++) { float f; if (k == 0) f = 1;", "y[i] = f; }"],
        *(STORE, "f"),
    ),
    ("mathematics", ["float f; float g = exp(f + x[i]);", "y[i] = sqrt(g);"], STORE, "f"),
    ("other_lane", ["float f; if (i == 5) f = 1;", "y[i] = simd_shuffle(f, 4);"], STORE, "f"),
    ("sum", ["float f; if (i != 5) f = 1;", "y[i] = simd_sum(f);"], STORE, "f"),
    ("shared", ["threadgroup float t[32]; if (i != 5) t[i] = 1;", "y[i] = t[i];"], STORE, "t"),
    ("matrix", ["simdgroup_float8x8 m;", "simdgroup_store(m, y, 8);"], STORE, "a simdgroup_matrix"),
    ("cooperative", [COOPERATIVE, "y[i] = c[0];"], STORE, "a cooperative tensor"),
]
RIGHT = {
    "set_in_both_branches": "float f; if (x[i] > 3) f = 1; else f = 2; y[i] = f;",
    "not_used": "float f; if (x[i] > 3) f = 1; if (x[i] > 3) y[i] = f;",
    "handed_on": "struct { float a, b; } s, t; s.a = 1; t = s; y[i] = t.a;",
    "vectors": "float4 v; v.x = x[i]; v.yzw = float3(1); y[i] = dot(v, v);",
    "parts": "int e; float w; y[i] = frexp(x[i], e) + e + modf(x[i], w) + w + sincos(x[i], w) + w;",
    "lanes": "y[i] = simd_sum(x[i]) + simd_prefix_exclusive_sum(x[i]) + quad_max(x[i]);",
    "bits": "uint n; n = as_type<uint>(x[i]) & 0xff; y[n % 32] = popcount(n);",
    "shared": "threadgroup float t[32]; t[i] = x[i];"
    " threadgroup_barrier(mem_flags::mem_threadgroup); y[i] = t[31 - i];",
    "matrices": "simdgroup_float8x8 a, b; simdgroup_load(a, x, 8); b = simdgroup_float8x8(0);"
    " simdgroup_multiply_accumulate(b, a, a, b); simdgroup_store(b, y, 8);",
    "cooperative": f"{COOPERATIVE} for (int k = 0; k < c.get_capacity(); k++) c[k] = k;"
    " y[i] = c[0];",
}


def library_of(kernels):
    text = HEAD + "".join(
        f"kernel void {name}({SIGNATURE}) {{\n{body}\n}}\n" for name, body in kernels
    )
    return emulator.compile(text, values=True, name="values.metal"), text.split("\n")


def launch(library, name, **policies):
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    kernel = library.pipeline(name)
    return kernel.launch({0: x, 1: y}, (1,), (32,), check=False, policies=Policies(**policies)), y


@pytest.fixture(scope="module")
def planted():
    return library_of([(name, "\n".join(lines)) for name, lines, *_ in PLANTED])


@pytest.fixture(scope="module")
def right():
    return library_of(RIGHT.items())[0]


@pytest.mark.parametrize(("name", "lines", "what", "about"), PLANTED, ids=[p[0] for p in PLANTED])
def test_a_use_of_what_was_never_set_is_found(planted, name, lines, what, about):
    library, text = planted
    result, _ = launch(library, name)
    finding = result.findings[0]
    assert {finding.kind for finding in result.findings} == {"uninitialised_value"}
    assert finding.message.startswith(what)
    assert finding.message.endswith(f" depends on {about}, which was not set")
    start = text.index(f"kernel void {name}({SIGNATURE}) {{") + 1
    assert finding.place == f"values.metal:{start + len(lines)}"
    if not about.startswith("a ") and about != "t":
        assert finding.other_place == f"values.metal:{start + 1}"


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_else_is_found(right, name):
    assert launch(right, name)[0].findings == ()


def test_a_store_names_byte_and_thread(planted):
    result, _ = launch(planted[0], "shared")
    (finding,) = result.findings
    assert (finding.argument, finding.byte, finding.lane, finding.count) == ("y", 20, 5, 1)


def test_a_fresh_cooperative_tensor_that_is_zero_is_set(planted):
    result, y = launch(planted[0], "cooperative", fresh="zero")
    assert result.findings == () and not y.any()


def test_results_are_those_of_other_builds(right):
    result, y = launch(right, "matrices")
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    np.testing.assert_array_equal(y.reshape(8, 8), x @ x)
    assert result.counters["matmul_flops"] == 2 * 8**3


def test_accesses_and_values_are_not_watched_at_once():
    with pytest.raises(ValueError, match="trace and values must not both be True"):
        emulator.compile(HEAD, trace=True, values=True)


# By default those of the shortest compilations, and one of matmul2d.
OFTEN = ("softmax_single_row", "sdpa_vector", "affine_qmm_t_nax")
APPLE = [
    pytest.param(case, id=str(case), marks=() if str(case) in OFTEN else pytest.mark.full)
    for case in CASES
]


@pytest.mark.parametrize("case", APPLE)
def test_apple_kernels_use_nothing_unset(case):
    library = emulator.compile(
        case.source(),
        include_dirs=[ak.include_folder()],
        instantiations={"kernel": case.instance},
        values=True,
    )
    assert case.run(library, {}).findings == ()
