"""Builds the emulator's runtime with kernels written in C++ and launches them through the C ABI."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SOURCES = Path(__file__).resolve().parents[1] / "csrc" / "emulator"
COMPILE = [
    *("-std=c++17", "-O1", "-g1", "-fPIC", "-fvisibility=hidden"),
    *("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-omit-frame-pointer"),
    *("-fno-optimize-sibling-calls", "-fno-sanitize=undefined", "-Wall", "-Wextra", "-Werror"),
    f"-I{SOURCES / 'include'}",
]
TRACE = [
    *("-DEMU_TRACE", "-fsanitize=kernel-address", "-fno-vectorize", "-fno-slp-vectorize"),
    *("-mllvm", "-asan-instrumentation-with-call-threshold=0"),
    *("-mllvm", "-asan-kernel-mem-intrinsic-prefix=1", "-mllvm", "-asan-stack=0"),
    *("-mllvm", "-asan-globals=0", "-mllvm", "-asan-opt=0", "-mllvm", "-asan-opt-same-temp=0"),
]
VALUES = [
    *("-DEMU_VALUES", "-O0", "-emit-llvm", "-Xclang", "-disable-O0-optnone"),
    *("-Xclang", "-fsanitize=kernel-memory", "-Xclang", "-fno-sanitize-memory-param-retval"),
]
POLICIES = [
    *("order", "seed", "layout", "multiply_accumulates", "fresh_zero", "incompatible"),
    *("static_k_traps", "relaxed_truncates", "row_owner", "guard_begin", "stack_kib"),
    *("handle_outermost", "subscript_outermost", "time_limit_ms"),
]
COUNTERS = [
    *("matmul_flops", "simdgroup_matrix_flops", "strict_float_flops", "integer_flops"),
    *("matmul_calls", "threadgroup_barriers", "simdgroup_barriers", "quadgroup_barriers"),
    "simd_ops",
    *("threadgroup_bytes", "threadgroup_read_bytes", "threadgroup_written_bytes"),
    *("device_read_bytes", "device_written_bytes"),
]
OK, FAULT, UNKNOWN_KERNEL, BAD_ARGUMENT = 0, 1, 2, 3
FORWARD, REVERSE, RANDOM = 0, 1, 2
N_BUFFERS = 31


def run_zig(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "ziglang", *arguments], check=True)


def compile_runtime(folder: Path, *flags: str) -> Path:
    compiled = folder / "runtime.o"
    source = SOURCES / "runtime" / "runtime.cpp"
    run_zig("c++", *COMPILE, *flags, "-c", str(source), "-o", str(compiled))
    return compiled


def compile_kernels(source: Path, folder: Path, *flags: str, watch: str = "nothing") -> Path:
    compiled = folder / f"{source.stem}.o"
    flags = (*COMPILE, "-nostdinc++", *flags)
    if watch == "accesses":
        flags += (*TRACE,)
    if watch == "values":
        first = compiled.with_suffix(".bc")
        run_zig("c++", *flags, *VALUES, "-c", str(source), "-o", str(first))
        run_zig(
            "c++",
            *flags,
            "-Wno-unused-command-line-argument",
            "-c",
            str(first),
            "-o",
            str(compiled),
        )
        return compiled
    run_zig("c++", *flags, "-c", str(source), "-o", str(compiled))
    return compiled


def link(folder: Path, name: str, *objects: Path) -> Path:
    # As C: the runtime needs no C++ library, and ziglang would compile one first.
    library = folder / f"{name}.so"
    run_zig("cc", "-shared", *map(str, objects), "-o", str(library))
    return library


def build(kernels: Path, folder: Path, trace: bool = False) -> Path:
    """Compiles one file of kernels and the runtime into a shared library."""
    runtime = compile_runtime(folder, *(["-DEMU_TRACE"] if trace else []))
    objects = runtime, compile_kernels(kernels, folder, watch="accesses" if trace else "nothing")
    return link(folder, kernels.stem, *objects)


@dataclass
class Launch:
    """What a launch left behind."""

    status: int
    findings: list[dict]
    counters: dict[str, int]
    read_bytes: dict[int, int]
    written_bytes: dict[int, int]
    kinds: list[str] = field(init=False)

    def __post_init__(self):
        self.kinds = [finding["kind"] for finding in self.findings]

    def only(self, kind: str) -> dict:
        """The one finding, which is of this kind."""
        assert self.kinds == [kind], self.findings
        return self.findings[0]


class Library:
    """A loaded library of kernels."""

    def __init__(self, path: Path):
        self.path = path
        self.abi = ctypes.CDLL(str(path))
        for name in ("emu_findings", "emu_kernels", "emu_constants"):
            getattr(self.abi, name).restype = ctypes.c_char_p

    def launch(
        self,
        kernel: str,
        buffers: dict[int, np.ndarray],
        threads: tuple[int, ...],
        grid: tuple[int, ...] = (1,),
        threads_per_grid: tuple[int, ...] | None = None,
        threadgroup_bytes: tuple[int, ...] = (),
        os_threads: int = 1,
        **policies: int,
    ) -> Launch:
        """Runs a kernel; arrays are written in place."""
        n_buffers = max(buffers, default=-1) + 1
        pointers = (ctypes.c_void_p * max(n_buffers, 1))()
        sizes = (ctypes.c_size_t * max(n_buffers, 1))()
        for index, array in buffers.items():
            pointers[index], sizes[index] = array.ctypes.data, array.nbytes
        assert set(policies) <= set(POLICIES)
        status = self.abi.emu_launch(
            kernel.encode(),
            *(n_buffers, pointers, sizes),
            *(len(threadgroup_bytes), (ctypes.c_size_t * 8)(*threadgroup_bytes)),
            *(self._three(grid), self._three(threads)),
            None if threads_per_grid is None else self._three(threads_per_grid),
            (ctypes.c_int32 * len(POLICIES))(*(policies.get(name, 0) for name in POLICIES)),
            os_threads,
        )
        findings = json.loads(self.abi.emu_findings().decode())
        words = (ctypes.c_uint64 * len(COUNTERS))()
        assert self.abi.emu_counters(words, len(COUNTERS)) == len(COUNTERS)
        read, written = (ctypes.c_uint64 * N_BUFFERS)(), (ctypes.c_uint64 * N_BUFFERS)()
        self.abi.emu_buffer_bytes(read, written)
        return Launch(
            status,
            findings,
            dict(zip(COUNTERS, words, strict=True)),
            {i: n for i, n in enumerate(read) if n},
            {i: n for i, n in enumerate(written) if n},
        )

    @staticmethod
    def _three(sizes: tuple[int, ...]):
        return (ctypes.c_uint32 * 3)(*sizes, *[1] * (3 - len(sizes)))
