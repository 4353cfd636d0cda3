"""The project configured and built for one macOS version, with the toolchain beside this file."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import make_tbd

HERE = Path(__file__).resolve().parent
# Python's own symbols come from the process that loads the extension, whatever that is called.
PYTHON_INSTALL_NAME = "@executable_path/python"


@dataclass(frozen=True)
class Project:
    """One macOS version's build; ``mlx`` is the unpacked ``mlx`` package of Apple's wheels."""

    source: Path
    cache: Path
    macos: str
    mlx: Path
    jobs: int | None = None

    @property
    def folder(self) -> Path:
        """Where everything made for this macOS version lies."""
        return self.cache / f"macos-{self.macos}"

    @property
    def compiler(self) -> Path:
        """The C++ compiler as CMake sees it."""
        return self.folder / "tools" / "c++"

    def configure(self, link_flags: str = "") -> None:
        """Run CMake; ``link_flags`` is added to the extension's link."""
        headers = self._python_headers()
        self._write_tools()
        suffix = f".{sys.implementation.cache_tag}-darwin.so"
        definitions = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_TOOLCHAIN_FILE": HERE / "toolchain.cmake",
            "CMAKE_MAKE_PROGRAM": _program("ninja"),
            "CMAKE_MODULE_LINKER_FLAGS": link_flags,
            "MACOS_CROSS_TOOLS": self.folder / "tools",
            "MLX_ROOT": self.mlx,
            "MLX_CORE_DIR": self.mlx,
            "Python_EXECUTABLE": sys.executable,
            "Python_INCLUDE_DIR": headers,
            "NB_SUFFIX": suffix,
        }
        folders: list[str | Path] = ["-S", self.source, "-B", self.folder / "cmake"]
        defined = [f"-D{name}={value}" for name, value in definitions.items()]
        self._run([_program("cmake"), "-G", "Ninja", *folders, *defined])

    def build(self) -> None:
        """Compile and link the extension."""
        jobs = [f"-j{self.jobs}"] if self.jobs else []
        self._run([_program("ninja"), "-C", self.folder / "cmake", *jobs, "_ext"])

    def extension(self) -> Path:
        """Return the linked extension."""
        (path,) = (self.folder / "cmake").glob("_ext.*.so")
        return path

    def compile(self, source: Path) -> Path:
        """Compile one file with the toolchain alone and return the object."""
        compiled = self.folder / f"{source.stem}.o"
        self._run([self.compiler, "-std=c++20", "-c", source, "-o", compiled])
        return compiled

    def python_symbols(self) -> frozenset[str]:
        """Return the names that nanobind lets an extension take from Python at run time."""
        spec = find_spec("nanobind")
        if spec is None or spec.origin is None:
            raise RuntimeError("nanobind is not installed for this Python")
        listed = Path(spec.origin).parent / "cmake" / "darwin-ld-cpython.sym"
        return frozenset(re.findall(r"^-U (\S+)$", listed.read_text(), re.MULTILINE))

    def _python_headers(self) -> Path:
        # Python.h looks for pyconfig.h in its own folder first, so the headers must be copied.
        copy = self.cache / "python" / str(sys.implementation.cache_tag)
        if not (copy / "pyconfig.h").is_file():
            shutil.copytree(sysconfig.get_path("include"), copy)
        own = HERE / "pyconfig.h"
        if (copy / own.name).read_bytes() != own.read_bytes():
            shutil.copyfile(own, copy / own.name)
        return copy

    def _write_tools(self) -> None:
        tools = self.compiler.parent
        tools.mkdir(parents=True, exist_ok=True)
        python_stub = self.folder / "libpython_host.tbd"
        python_stub.write_text(make_tbd.render(PYTHON_INSTALL_NAME, self.python_symbols()))
        link_stubs = HERE / "stubs" / "lib" / self.macos
        zig = _zig()
        compiler: list[str | Path] = [sys.executable, "-SE", HERE / "compiler.py"]
        self._write_tool("c++", [*compiler, zig, self.macos, link_stubs, python_stub])
        self._write_tool("ar", [zig, "ar"])
        self._write_tool("ranlib", [zig, "ranlib"])
        self._write_tool("install_name_tool", ["true"])

    def _write_tool(self, name: str, command: Sequence[str | Path]) -> None:
        path = self.compiler.parent / name
        words = shlex.join(str(word) for word in command)
        path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        path.chmod(0o755)

    def _run(self, command: Sequence[str | Path]) -> None:
        words = [str(word) for word in command]
        zig_cache = os.environ.get("ZIG_GLOBAL_CACHE_DIR", str(self.cache / "zig"))
        result = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"ZIG_GLOBAL_CACHE_DIR": zig_cache, "ZIG_LOCAL_CACHE_DIR": zig_cache},
        )
        if result.returncode != 0:
            raise BuildError(f"{shlex.join(words)}\n{result.stdout}")


class BuildError(RuntimeError):
    """A step of the build failed; the text is its command and output."""


def _program(name: str) -> str:
    beside_python = str(Path(sys.executable).parent)
    found = shutil.which(name, path=beside_python) or shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed: pip install {name}")
    return found


def _zig() -> Path:
    spec = find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise RuntimeError("zig is not installed: pip install ziglang")
    return Path(spec.origin).parent / "zig"
