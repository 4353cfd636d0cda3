"""From Metal source to a shared library: preprocess, rewrite, compile, link; cached by content."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mlx_tensorops.testing.emulator import preprocessing, toolchain
from mlx_tensorops.testing.emulator.errors import CompileError, EmulatorError
from mlx_tensorops.testing.emulator.preprocessing import first_error_first
from mlx_tensorops.testing.emulator.rewriter import (
    Argument,
    FunctionConstant,
    Instance,
    RewriteError,
    rewrite,
)

_HERE = Path(__file__).parent
# In a wheel the sources lie beside this file, in a checkout where they are written.
SOURCES = next(
    (path for path in (_HERE / "_sources", _HERE.parents[2] / "csrc/emulator") if path.is_dir()),
    None,
)

_OPTIMIZE = "-O1"  # the best sum of compile and run time for test-sized problems
# Of everything: findings are attributed through frame pointers, GPU threads switch stacks under the
# compiler's feet, and zig adds traps to code that is not optimized for speed.
_COMMON_FLAGS = (
    "-fPIC",
    "-fno-omit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-fno-stack-protector",
    "-fstack-clash-protection",  # however large a function's variables, they do not skip the guard
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fno-sanitize=undefined",
    "-fdiagnostics-color=never",
)
# Metal is C++17 (C++14 before 4.0) without double, without exceptions and RTTI. Half arithmetic
# rounds after each operation, and nothing is contracted, so that results do not depend on -O.
_LANGUAGE_FLAGS = (
    "-fsigned-char",
    "-std=c++17",
    "-march=native",
    "-gdwarf-4",  # what lines.py reads
    "-gline-tables-only",
    "-nostdinc++",
    "-fno-strict-aliasing",
    "-fdeclspec",  # the swizzles of vectors are __declspec(property)
    "-ffp-contract=off",
    *("-Xclang", "-cl-single-precision-constant"),
    *("-Xclang", "-ffloat16-excess-precision=none"),
    *("-Xclang", "-fbfloat16-excess-precision=none"),
)
# Every access to memory calls the runtime, those of memcpy and its like included; the optimizer
# must not merge them, nor prove them unnecessary.
_TRACE_FLAGS = (
    "-DEMU_TRACE",
    "-fsanitize=kernel-address",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    *("-mllvm", "-asan-instrumentation-with-call-threshold=0"),
    *("-mllvm", "-asan-kernel-mem-intrinsic-prefix=1"),
    *("-mllvm", "-asan-stack=0"),
    *("-mllvm", "-asan-globals=0"),
    *("-mllvm", "-asan-opt=0"),
    *("-mllvm", "-asan-opt-same-temp=0"),
)
# Every value carries which of its bits were never set. The compiler has to see the source as it is
# written: the optimizer turns what depends on such bits into whatever suits it. It comes second.
_VALUE_FLAGS = (
    "-DEMU_VALUES",
    "-fno-math-errno",  # mathematics as operations that the compiler knows, not as functions
    "-fno-discard-value-names",  # findings name variables
    *("-Xclang", "-fsanitize=kernel-memory"),
    *("-Xclang", "-fno-sanitize-memory-param-retval"),  # to hand a value on is not to use it
    *("-Xclang", "-fsanitize-address-use-after-scope"),  # variables in loops are new in every round
    *("-Xclang", "-disable-O0-optnone"),
)
_PATTERN_FLAG = "-ftrivial-auto-var-init=pattern"  # what a kernel forgot to initialize is NaN
WARNING_FLAGS = (
    "-w",
    "-Wno-invalid-constexpr",
    "-Wno-reserved-user-defined-literal",
    "-Wno-c++11-narrowing",
)
# Without line tables: a finding is never the runtime's own.
_RUNTIME_FLAGS = ("-std=c++17", "-O2", "-g0")


@dataclass(frozen=True)
class Request:
    """All that a compiled library depends on, apart from the compiler and the emulator."""

    source: str | Path
    name: str
    include_dirs: tuple[Path, ...]
    defines: tuple[tuple[str, str], ...]
    instantiations: tuple[tuple[str, str], ...]
    metal_version: int
    watch: str


def request(
    source: str | os.PathLike[str],
    include_dirs: Sequence[str | os.PathLike[str]],
    defines: Mapping[str, object] | None,
    instantiations: Mapping[str, str] | None,
    metal_version: int,
    watch: str,
    name: str,
) -> Request:
    """A request from the arguments of the public functions."""
    return Request(
        source=source if isinstance(source, str) else Path(source).resolve(),
        name=name,
        include_dirs=tuple(Path(folder).resolve() for folder in include_dirs),
        defines=tuple((key, str(value)) for key, value in (defines or {}).items()),
        instantiations=tuple((instantiations or {}).items()),
        metal_version=metal_version,
        watch=watch,
    )


@dataclass(frozen=True)
class Built:
    """A shared library, and the kernels and function constants in it."""

    path: Path
    instances: tuple[Instance, ...]
    constants: tuple[FunctionConstant, ...]
    warnings: tuple[str, ...]


def build(wanted: Request) -> Built:
    """Compile the request, or find it in the cache.

    Raises:
        CompileError: the source is wrong, or needs what the emulator does not have.
        CompilerMissing: there is no compiler.
    """
    compiler = toolchain.find()
    preprocessed = preprocess(compiler, wanted)
    flags = kernel_flags(wanted.watch)
    key = _digest(
        preprocessed, repr(wanted.instantiations), repr(flags), compiler.identity, _own_digest()
    )
    folder = toolchain.cache_folder() / "kernels" / key
    if not (folder / "kernels.json").exists():
        _in_new_folder(folder, lambda new: _compile(compiler, wanted, preprocessed, new))
    return _load(folder)


def sources() -> Path:
    """The folder with the C++ part of the emulator."""
    if SOURCES is None:
        message = f"the emulator's C++ sources are not part of this installation ({_HERE})"
        raise EmulatorError(message)
    return SOURCES


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@lru_cache(maxsize=1)
def _own_digest() -> str:
    """Of everything here that decides how a kernel is rewritten, and of the runtime."""
    files = [*_HERE.glob("rewriter/*.py"), Path(__file__), *sources().rglob("runtime/*")]
    files += (sources() / "include" / "emulator").glob("*.h")
    return _digest(*(file.read_text() for file in sorted(files) if file.is_file()))


def kernel_flags(watch: str = "nothing") -> tuple[str, ...]:
    """How kernels are compiled: watching "nothing", "accesses" to memory or "values"."""
    flags = (*_COMMON_FLAGS, *_LANGUAGE_FLAGS)
    if watch == "values":
        return (*flags, "-O0", *_VALUE_FLAGS)
    return (*flags, _OPTIMIZE, _PATTERN_FLAG, *(_TRACE_FLAGS if watch == "accesses" else ()))


def preprocess(compiler: toolchain.Toolchain, request: Request) -> str:
    """The source with everything that it includes."""
    include = sources() / "include"
    arguments = [*kernel_flags(request.watch), "-isystem", str(include)]
    arguments += ["-include", "emulator/inputs.h"]
    arguments += [f"-I{path}" for path in request.include_dirs]
    arguments += [f"-D__METAL_VERSION__={request.metal_version}"]
    defines = _defines(request) if request.defines else None
    return preprocessing.preprocess(compiler, request.source, request.name, arguments, defines)


def _defines(request: Request) -> str:
    """A header with the macros, which is read after Metal's: in Metal those are a module.

    Given to the compiler with -D, a macro N would change the emulator's own templates.
    """
    text = "".join(f"#define {name} {value}\n" for name, value in request.defines)
    path = toolchain.cache_folder() / "defines" / f"{_digest(text)}.h"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(text)
        new.replace(path)
    return str(path)


def _compile(
    compiler: toolchain.Toolchain, request: Request, preprocessed: str, folder: Path
) -> None:
    try:
        rewritten = rewrite(preprocessed, dict(request.instantiations))
    except RewriteError as error:
        raise CompileError(str(error)) from None
    source, kernel_object = folder / "kernels.cpp", folder / "kernels.o"
    source.write_text(rewritten.text)
    _compile_text(compiler, source, kernel_object, request.watch)
    _link(compiler, [kernel_object, _runtime(compiler, request.watch)], folder / "kernels.so")
    kernel_object.unlink()
    facts = {
        "instances": [asdict(instance) for instance in rewritten.instances],
        "constants": [asdict(constant) for constant in rewritten.constants],
        "warnings": rewritten.warnings,
    }
    (folder / "kernels.json").write_text(json.dumps(facts))


def _compile_text(compiler: toolchain.Toolchain, source: Path, output: Path, watch: str) -> None:
    flags = [*kernel_flags(watch), *WARNING_FLAGS]
    first = output.with_suffix(".bc") if watch == "values" else output
    if watch == "values":
        flags.append("-emit-llvm")
    status, _, messages = compiler.run(["-c", "-x", "c++", *flags, str(source), "-o", str(first)])
    if status:
        raise CompileError(first_error_first(messages))
    if first == output:
        return
    flags = [*_COMMON_FLAGS, "-march=native", _OPTIMIZE]
    status, _, messages = compiler.run(["-c", *flags, str(first), "-o", str(output)])
    if status:
        raise EmulatorError(f"the compiler does not take its own output:\n{messages}")
    first.unlink()


def _runtime(compiler: toolchain.Toolchain, watch: str) -> Path:
    """The runtime's object file: the same for all kernels, compiled when first needed."""
    macros = {"accesses": ("-DEMU_TRACE",), "values": ("-DEMU_VALUES",)}.get(watch, ())
    flags = (*_COMMON_FLAGS, *_RUNTIME_FLAGS, *macros)
    key = _digest(repr(flags), compiler.identity, _own_digest())
    folder = toolchain.cache_folder() / "runtime" / key

    def compile_runtime(new: Path) -> None:
        source = sources() / "runtime" / "runtime.cpp"
        include = f"-I{sources() / 'include'}"
        status, _, messages = compiler.run(
            ["-c", *flags, include, str(source), "-o", str(new / "runtime.o")]
        )
        if status:
            raise EmulatorError(f"the emulator's runtime does not compile:\n{messages}")

    if not (folder / "runtime.o").exists():
        _in_new_folder(folder, compile_runtime)
    return folder / "runtime.o"


def _link(compiler: toolchain.Toolchain, objects: Sequence[Path], output: Path) -> None:
    # zig would compile its C++ library, for minutes; the runtime does without one.
    flags = ("-shared", "-nostdlib++", "-Wl,-Bsymbolic", "-Wl,-z,defs")
    arguments = [*flags, *map(str, objects), "-o", str(output), "-lpthread", "-lm"]
    status, _, messages = compiler.run(arguments)
    if status:
        raise CompileError(f"the kernels do not link:\n{messages}")


def _in_new_folder(folder: Path, fill: Any) -> None:
    """Fill a folder under another name, so that no other process sees it half done."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        fill(new)
        try:
            os.rename(new, folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _load(folder: Path) -> Built:
    facts: Mapping[str, Any] = json.loads((folder / "kernels.json").read_text())
    instances = (
        Instance(**{**instance, "arguments": tuple(Argument(**a) for a in instance["arguments"])})
        for instance in facts["instances"]
    )
    constants = (FunctionConstant(**constant) for constant in facts["constants"])
    return Built(
        folder / "kernels.so", tuple(instances), tuple(constants), tuple(facts["warnings"])
    )
