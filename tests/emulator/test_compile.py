"""From .metal source to a library: what is accepted, what is refused and how, what is cached."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator import building, toolchain

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
COPY = HEAD + "kernel void copy(const device float* x, device float* y) { y[0] = x[0]; }\n"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own; the compiler and its own cache stay."""
    for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):
        monkeypatch.setenv(name, os.environ.get(name, str(toolchain.cache_folder() / "zig")))
    monkeypatch.setenv("MLX_TENSOROPS_EMULATOR_CACHE", str(tmp_path))
    return tmp_path


def test_a_source_can_be_a_file(tmp_path):
    (tmp_path / "twice.h").write_text("template <typename T> T twice(T x) { return x + x; }\n")
    path = tmp_path / "copy.metal"
    path.write_text(
        COPY.replace("x[0];", "twice(x[0]);").replace("using", '#include "twice.h"\nusing')
    )
    out = np.zeros(1, np.float32)
    kernel = emulator.compile(path).pipeline("copy")
    kernel.launch({0: np.ones(1, np.float32), 1: out}, grid=(1,))
    assert out == 2
    path.write_text("kernel void f( {}\n")
    with pytest.raises(emulator.CompileError, match=r"copy\.metal:1"):
        emulator.compile(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("kernel void f(device float* y) { y[0] = nothing; }", "undeclared identifier 'nothing'"),
        ("kernel void f(device float* y) { y[0] = 1.0f }", "expected ';'"),
        (
            "kernel void f(texture2d<float> t [[texture(0)]]) {}",
            r"\[\[texture\]\] is not supported",
        ),
        ('#include "nowhere.h"', "'nowhere.h' file not found"),
        ("#error no", "no"),
        ("kernel void f(device float* y) { y[0] = 0; ", "is never closed"),
        ('template <int N> void g() { static_assert(N == 1, "one"); } void h() { g<2>(); }', "one"),
    ],
)
def test_a_wrong_source_is_refused_with_its_line(line, message):
    text = f"{HEAD}\n{line}\n"
    with pytest.raises(emulator.CompileError) as caught:
        emulator.compile(text, name="wrong.metal")
    first = str(caught.value).splitlines()[0]
    assert re.match(rf"wrong\.metal:4\b.*{message}", first), first


MACROS = """#define N 4
#define T 7
#define Extents what
#define size 3
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
kernel void f(device int* y) {
  matrix<float, 2, 2> m(2);
  tensor<device int, dextents<int, 1>, tensor_inline> t(y, dextents<int, 1>(5));
  t.store(N + T + size + int(m[0][0]), 0);
}
"""


@pytest.mark.parametrize("included", [False, True])
def test_macros_of_a_kernel_do_not_reach_into_the_headers(tmp_path, included):
    text = MACROS
    if included:
        (tmp_path / "own.h").write_text(MACROS)
        text = '#include "own.h"\n'
    y = np.zeros(5, np.int32)
    emulator.compile(text, include_dirs=[tmp_path]).pipeline("f").launch({0: y}, grid=(1,))
    assert y[0] == 4 + 7 + 3 + 2


@pytest.mark.parametrize(
    ("header", "body", "missing"),
    [
        ("", "metal::uint x = 1;", "metal"),
        ("#include <metal_stdlib>", "metal::dextents<int, 2> e;", "dextents"),
        (
            "#include <metal_tensor>",
            "constexpr mpp::tensor_ops::matmul2d_descriptor d(16, 32, 16);",
            "mpp",
        ),
    ],
)
def test_what_is_not_included_is_not_there(header, body, missing):
    with pytest.raises(emulator.CompileError, match=f"kernel.metal:2: .*'{missing}'"):
        emulator.compile(f"{header}\nkernel void f() {{ {body} }}\n")
    every = "#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>"
    emulator.compile(f"{every}\nkernel void f() {{ {body} }}\n")


def test_a_wrong_instance_is_refused():
    text = HEAD + "template <typename T> kernel void f(device T* y) { y[0] = T(); }\n"
    with pytest.raises(emulator.CompileError, match="there is no kernel g"):
        emulator.compile(text, instantiations={"g": "g<float>"})
    with pytest.raises(emulator.CompileError, match="nothing"):
        emulator.compile(text, instantiations={"f": "f<nothing>"})


def test_defines_and_version():
    text = HEAD + (
        "kernel void f(device int* y) { y[0] = N; y[1] = __METAL_VERSION__;\n"
        "#ifdef FLAG\ny[2] = FLAG;\n#endif\n}\n"
    )
    out = np.zeros(3, np.int32)
    library = emulator.compile(text, defines={"N": 3, "FLAG": 1}, metal_version=410)
    library.pipeline("f").launch({0: out}, grid=(1,))
    assert out.tolist() == [3, 410, 1]


def test_the_language_is_that_of_metal():
    """17, not 20; no exceptions; no double."""
    for text in (
        "template <typename T> concept C = true;",
        "void f() { throw 1; }",
        "static_assert(sizeof(1.0) == 8);",
        "double x;",
    ):
        with pytest.raises(emulator.CompileError):
            emulator.compile(HEAD + text)


def test_compiled_once(cache, monkeypatch):
    compiled = []
    real = building._compile
    monkeypatch.setattr(building, "_compile", lambda *a: (compiled.append(a), real(*a)))
    first = emulator.compile(COPY)
    again = emulator.compile(COPY)
    assert len(compiled) == 1
    assert first.kernels == again.kernels == ("copy",)
    assert (again._built.instances, again._built.constants) == (
        first._built.instances,
        first._built.constants,
    )
    emulator.compile(COPY.replace("y[0]", "y[1]"))
    emulator.compile(COPY, instantiations={"another": "copy"})
    assert len(compiled) == 3
    folders = list((cache / "kernels").iterdir())
    assert len(folders) == 3 and all((folder / "kernels.so").exists() for folder in folders)


def test_a_failed_compilation_leaves_nothing(cache):
    with pytest.raises(emulator.CompileError):
        emulator.compile(HEAD + "void f() { x; }")
    assert not list((cache / "kernels").iterdir())


def test_comments_do_not_compile_anew(cache, monkeypatch):
    emulator.compile(COPY)
    monkeypatch.setattr(building, "_compile", lambda *a: pytest.fail("compiled again"))
    emulator.compile(COPY.replace("{ y[0]", "{ /* why */ y[0]"))


def test_a_missing_compiler_says_what_to_install(monkeypatch):
    monkeypatch.setattr(toolchain, "_zig", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("MLX_TENSOROPS_EMULATOR_CXX", raising=False)
    toolchain.find.cache_clear()
    try:
        with pytest.raises(emulator.CompilerMissing) as caught:
            emulator.compile(COPY)
        message = str(caught.value)
        assert "\n" not in message and "pip install 'mlx-tensorops[emulator]'" in message
        monkeypatch.setenv("MLX_TENSOROPS_EMULATOR_CXX", "/nowhere/clang++")
        with pytest.raises(emulator.EmulatorError, match="/nowhere/clang.* does not work"):
            emulator.compile(COPY)
    finally:
        toolchain.find.cache_clear()


def test_another_compiler_than_clang_is_refused(monkeypatch, tmp_path):
    other = tmp_path / "c++"
    other.write_text('#!/bin/sh\necho "#define __VERSION__ \\"13.2.0\\""\n')
    other.chmod(0o755)
    monkeypatch.setenv("MLX_TENSOROPS_EMULATOR_CXX", str(other))
    toolchain.find.cache_clear()
    try:
        with pytest.raises(emulator.CompilerMissing, match=r'is "13\.2\.0"'):
            emulator.compile(COPY)
    finally:
        toolchain.find.cache_clear()


@pytest.fixture
def system_clang(monkeypatch, cache):
    """The emulator with the system's compiler, as where ziglang is not installed."""
    monkeypatch.setattr(toolchain, "_zig", lambda: None)
    monkeypatch.delenv("MLX_TENSOROPS_EMULATOR_CXX", raising=False)
    toolchain.find.cache_clear()
    yield
    toolchain.find.cache_clear()


def test_a_clang_that_is_too_old_is_passed_over(monkeypatch, tmp_path, system_clang):
    for name, major in (("clang++", 14), ("clang++-19", 19)):
        text = f'#define __clang_major__ {major}\n#define __VERSION__ "Clang {major}"\n'
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '%s' '{text}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert toolchain.find().command == (str(tmp_path / "clang++-19"),)
    (tmp_path / "clang++-19").unlink()
    toolchain.find.cache_clear()
    with pytest.raises(emulator.CompilerMissing, match='is "Clang 14": .* 19 or newer on PATH'):
        toolchain.find()


def test_a_clang_of_the_system_will_do(system_clang):
    try:
        command = toolchain.find().command
    except emulator.CompilerMissing as missing:
        pytest.skip(str(missing))
    assert "zig" not in command[0]
    text = HEAD + (
        "kernel void f(const device half* x, device float* y,"
        " uint i [[thread_index_in_threadgroup]]) {"
        " threadgroup float t[32]; t[i] = x[i] * 1.5h;"
        " threadgroup_barrier(mem_flags::mem_threadgroup); y[i] = simd_sum(t[31 - i]); }"
    )
    for watch in ({}, {"trace": True}, {"values": True}):
        y = np.zeros(32, np.float32)
        kernel = emulator.compile(text, **watch).pipeline("f")
        kernel.launch({0: np.arange(32, dtype=np.float16), 1: y}, grid=(1,), threadgroup=(32,))
        assert (y == 1.5 * 496).all()
        with pytest.raises(emulator.Fault, match="device_out_of_bounds.*kernel.metal:3"):
            kernel.launch({0: np.zeros(8, np.float16), 1: y}, grid=(1,), threadgroup=(32,))


def test_nothing_is_written_to_the_current_folder(tmp_path):
    code = f"from mlx_tensorops.testing import emulator; emulator.compile({COPY!r})"
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), *sys.path[:1])))
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env=environment)
    assert list(Path(tmp_path).iterdir()) == []
