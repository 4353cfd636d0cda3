"""Say what a cross-built extension imports, and what about it is not as it must be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import macho
from macho import MachO
from make_tbd import STUBS
from project import PYTHON_INSTALL_NAME, Project

MLX_INSTALL_NAME = "@rpath/libmlx.dylib"
SYSTEM_LIBRARIES = {*STUBS, "/usr/lib/libSystem.B.dylib"}
MLX_RUN_PATH = "@loader_path/../mlx/lib"


@dataclass(frozen=True)
class Expected:
    """What the target machine offers to the extension."""

    macos: str
    nanobind_keys: frozenset[str]
    mlx_exports: frozenset[str]
    python_symbols: frozenset[str]

    @classmethod
    def of(cls, project: Project) -> Expected:
        """Read it from the project's unpacked Mac wheels."""
        (core,) = project.mlx.glob("core.*.so")
        return cls(
            macos=project.macos,
            nanobind_keys=macho.read(core).nanobind_keys,
            mlx_exports=macho.read(project.mlx / "lib" / "libmlx.dylib").exports,
            python_symbols=project.python_symbols(),
        )


def problems(extension: MachO, expected: Expected) -> list[str]:
    """Return a sentence for each thing that would keep ``extension`` from working on a Mac."""
    found = []
    for flag in sorted({"NOUNDEFS", "TWOLEVEL"} - extension.flags):
        found.append(f"the link left names for run time: flag {flag} is not set")
    if extension.minimum_macos != expected.macos:
        found.append(f"it must need macOS {expected.macos}, got {extension.minimum_macos}")
    if extension.nanobind_keys != expected.nanobind_keys:
        keys = f"{sorted(expected.nanobind_keys)}, got {sorted(extension.nanobind_keys)}"
        found.append(f"its nanobind ABI must be that of mlx.core {keys}")
    if MLX_RUN_PATH not in extension.run_paths:
        found.append(f"its run paths must hold {MLX_RUN_PATH}, got {extension.run_paths}")
    return found + _unresolved(extension, expected)


def _unresolved(extension: MachO, expected: Expected) -> list[str]:
    offered = {
        MLX_INSTALL_NAME: expected.mlx_exports,
        PYTHON_INSTALL_NAME: expected.python_symbols,
    }
    found = [f"{name} is bound to no library" for name in sorted(extension.unbound)]
    for library, names in extension.imports.items():
        if library not in SYSTEM_LIBRARIES and library not in offered:
            found.append(f"it needs {library}, which no Mac with MLX has")
        for name in sorted(names - offered.get(library, names)):
            found.append(f"{name} is not in {library}")
    return found


def show(extension: MachO, macos: str, names_file: Path) -> None:
    """Print how many symbols ``extension`` takes from each library, and write their names down."""
    print(f"macOS {macos}: {extension.path}")
    print(f"  arm64 {extension.file_type}, {' '.join(sorted(extension.flags))}")
    print(f"  nanobind {' '.join(sorted(extension.nanobind_keys))}")
    lines = []
    for library, names in extension.imports.items():
        print(f"  {len(names):4d} symbols from {library}")
        lines += [library, *(f"  {name}" for name in sorted(names))]
    print(f"  {len(extension.unbound):4d} unresolved")
    names_file.write_text("\n".join(lines) + "\n")
    print(f"  their names: {names_file}", flush=True)
