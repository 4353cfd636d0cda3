"""The C++ compiler: clang, from the ziglang package on PyPI or from the system."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mlx_tensorops.testing.emulator.errors import CompilerMissing, EmulatorError

# The first that knows all the flags of building.py.
OLDEST_CLANG = 19
_INSTALL = (
    "the Metal emulator needs clang: pip install 'mlx-tensorops[emulator]' (the ziglang package), "
    f"or put clang++ {OLDEST_CLANG} or newer on PATH"
)


def cache_folder() -> Path:
    """Where compiled kernels are kept: $MLX_TENSOROPS_EMULATOR_CACHE, or the user's cache."""
    chosen = os.environ.get("MLX_TENSOROPS_EMULATOR_CACHE")
    if chosen:
        return Path(chosen)
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user) / "mlx_tensorops" / "emulator"


@dataclass(frozen=True)
class Toolchain:
    """A compiler command, and what must be part of the key of everything compiled by it."""

    command: tuple[str, ...]
    identity: str

    def run(self, arguments: Sequence[str], text: str | None = None) -> tuple[int, str, str]:
        """Call the compiler; its status, output and messages."""
        environment = {**os.environ, "LC_ALL": "C"}
        # Without these zig writes to the current folder.
        for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):
            environment.setdefault(name, str(cache_folder() / "zig"))
        done = subprocess.run(
            [*self.command, *arguments],
            input=text,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr


@lru_cache(maxsize=1)
def find() -> Toolchain:
    """The compiler of $MLX_TENSOROPS_EMULATOR_CXX, of ziglang, or on PATH.

    Raises:
        CompilerMissing: there is none.
    """
    chosen = os.environ.get("MLX_TENSOROPS_EMULATOR_CXX")
    if chosen:
        return _identified(tuple(shlex.split(chosen)))
    zig = _zig()
    if zig is not None:
        return _identified((str(zig), "c++"))
    return _of_the_system()


def _of_the_system() -> Toolchain:
    """The first clang on PATH that is new enough; distributions add the version to its name."""
    names = ["clang++", *(f"clang++-{version}" for version in range(40, OLDEST_CLANG - 1, -1))]
    found = [path for path in map(shutil.which, names) if path is not None]
    refused = CompilerMissing(f"no compiler found: {_INSTALL}")
    for path in found:
        try:
            return _identified((path,))
        except CompilerMissing as error:
            refused = error
    raise refused


def _zig() -> Path | None:
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        return None
    zig = Path(spec.origin).with_name("zig")
    return zig if zig.exists() else None


def _identified(command: tuple[str, ...]) -> Toolchain:
    try:
        done = subprocess.run(
            [*command, "-dM", "-E", "-x", "c++", os.devnull],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise EmulatorError(f"{shlex.join(command)} does not work: {error}") from None
    macros = dict(
        line.split(maxsplit=2)[1:]
        for line in done.stdout.splitlines()
        if len(line.split(maxsplit=2)) == 3
    )
    if int(macros.get("__clang_major__", 0)) < OLDEST_CLANG:
        found = macros.get("__VERSION__", "another compiler")
        raise CompilerMissing(f"{shlex.join(command)} is {found}: {_INSTALL}")
    return Toolchain(command, f"{shlex.join(command)} {macros['__VERSION__']} {_processor()}")


def _processor() -> str:
    """Code is compiled for this very processor, and caches may be shared between machines."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU"))}
    digest = hashlib.sha256("\n".join(sorted(facts)).encode()).hexdigest()[:16]
    return f"{platform.machine()} {digest}"
