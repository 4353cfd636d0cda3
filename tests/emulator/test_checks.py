"""Mistakes that only Metal's compiler would refuse."""

import apple_kernels as ak
import pytest

from mlx_tensorops.testing import emulator

HEAD = """#include <metal_stdlib>
using namespace metal;
struct Pair { float a, b; };
struct Tile {
  threadgroup float* memory;
  Tile(threadgroup float* m) thread : memory(m) {}
  void put(const device float* x) const thread { memory[0] = x[0]; }
  void put(const threadgroup float* x) const thread { memory[0] = x[0]; }
};
template <typename T> T first(const device T* x) { return x[0]; }
template <typename T> T first(const threadgroup T* x) { return x[0]; }
float from_device(const device float4& v) { return v.x; }
void only_device(device float* x) { x[0] = 1; }
void add(thread float& x) { x += 1; }
template <typename T> void into(threadgroup T* x, T value) { x[0] = value; }
"""
SIGNATURE = (
    "kernel void f(const device float* in, device float* out, constant Pair& pair,\n"
    "    constant float* fixed,\n"
    "    uint i [[thread_position_in_grid]]) {\n  threadgroup float shared[4];\n  "
)


def complaints(statement):
    return emulator.check(f"{HEAD}{SIGNATURE}{statement}\n}}\n", name="spaces.metal")


@pytest.mark.parametrize(
    "statement",
    [
        "threadgroup float* p = shared; p[i] = in[i]; out[i] = p[0];",
        "Tile tile(shared); tile.put(in); tile.put(shared);",
        "out[0] = first(in) + first(shared); only_device(out); into(shared, 1.0f);",
        "float x = in[0]; add(x); out[0] = x + pair.a;",
        "Pair copy = pair; out[0] = copy.b;",
        "threadgroup_barrier(mem_flags::mem_threadgroup); out[0] = simd_sum(shared[0]);",
        "float4 v = *(const device float4*)(in + i); out[0] = v.x; *((device float4*)out) = v;",
        "device float2* p = (device float2*)&out[2 * i]; p->xy = 1; p[1].x += p[0].y;",
        "ulong n = (ulong)in; out[0] = n; out[1] = ((const device float*)n)[0];",
        "threadgroup float4* t = reinterpret_cast<threadgroup float4*>(shared); t[0].x = t[1][2];",
        "constant float* p = fixed; p = fixed + 1; out[0] = p[0] + ((constant float4*)p)[1].w;",
    ],
)
def test_correct_use_is_accepted(statement):
    assert complaints(statement) == ()


@pytest.mark.parametrize(
    "statement",
    [
        "float* p = shared; p[0] = 1;",
        "threadgroup float* p = out;",
        "device float* p = out; p = shared;",
        "only_device(shared);",
        "Tile tile(out);",
        "into(out, 1.0f);",
        "float x[2]; out[0] = first(x);",
        "add(shared[0]);",
        "thread const Pair* p = &pair; out[0] = p->a;",
        "thread float* p = (thread float*)out; p[0] = 1;",
        "out[0] = *(const threadgroup float*)(in + i);",
        "auto p = (device Pair*)&pair; p->a = 1;",
        "device float* p = reinterpret_cast<device float*>(shared); p[0] = 1;",
        "float4 v; out[0] = from_device(v);",
        "fixed[0] = 1;",
        "fixed[i] += 2;",
        "((constant float4*)fixed)[0].x = 1;",
    ],
)
def test_misuse_is_noticed(statement):
    (complaint,) = complaints(statement)
    line = HEAD.count("\n") + SIGNATURE.count("\n") + 1
    assert complaint.startswith(f"spaces.metal:{line}: ")
    assert "emu_" not in complaint and "__attribute__" not in complaint


def test_misuse_in_a_template_is_noticed():
    text = HEAD + (
        "template <typename T> kernel void g(device T* x) { threadgroup T* p = x; p[0] = 1; }\n"
        'template [[host_name("g_f")]] [[kernel]] decltype(g<float>) g<float>;\n'
    )
    (complaint,) = emulator.check(text)
    assert complaint.startswith(f"kernel.metal:{HEAD.count(chr(10)) + 1}: cannot initialize")


def test_characters_beyond_ascii_are_noticed():
    complaints = emulator.check(f"{HEAD}// caf\u00e9\nvoid f() {{}}\n")
    assert complaints == (f"kernel.metal:{HEAD.count(chr(10)) + 1}: a character beyond ASCII",)


def test_a_source_that_does_not_compile_is_an_error():
    with pytest.raises(emulator.CompileError, match="is never closed"):
        emulator.check("void f() {")
    with pytest.raises(emulator.CompileError, match="'nowhere' file not found"):
        emulator.check("#include <nowhere>")


APPLE = {
    ("defines.h", "utils.h", "softmax.h"): ["softmax_single_row<float>", "softmax_looped<half>"],
    ("utils.h", "sdpa_vector.h"): ["sdpa_vector<half, 64, 64>"],
    ("utils.h", "steel/gemm/gemm.h", "quantized_utils.h", "quantized.h"): [
        "affine_qmm_t<half, 64, 4, false, false>",
        "affine_qmv<float, 64, 4, false>",
    ],
}


@pytest.mark.parametrize("headers", APPLE, ids=lambda headers: headers[-1])
def test_apple_kernels_are_accepted(headers):
    instances = {str(i): function for i, function in enumerate(APPLE[headers])}
    include_dirs = [ak.include_folder()]
    text = ak.source(*headers)
    assert emulator.check(text, include_dirs=include_dirs, instantiations=instances) == ()


def test_a_bug_planted_in_an_apple_kernel_is_noticed():
    path = ak.include_folder() / "mlx/backend/metal/kernels/softmax.h"
    text = path.read_text().replace("\u00a9", "(c)")
    assert text.count("local_max[simd_group_id] = maxval;") == 2
    text = text.replace(
        "local_max[simd_group_id] = maxval;", "device AccT* wrong = local_max; *wrong = maxval;"
    )
    complaints = emulator.check(
        ak.source("defines.h", "utils.h") + text,
        include_dirs=[ak.include_folder()],
        instantiations={"a": "softmax_single_row<float>", "b": "softmax_looped<float>"},
    )
    assert len(complaints) == 2
    assert all("cannot initialize a variable of type 'device float *'" in c for c in complaints)
