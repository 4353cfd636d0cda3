#!/usr/bin/env python3
"""Rewrite the committed .tbd link stubs from what binaries built by Apple's own tools import.

A .tbd file lists the names that a system library exports. Apple's lists come only with Xcode, so
these are gathered from the import tables of macOS wheels: a name that such a binary binds to a
library exists there. The lists are therefore too short rather than too long, which keeps the link
strict. One set is written for each macOS version, from wheels that run on it. If a link fails on a
name that macOS does have, add a wheel that uses it to WHEELS and run this again.

Usage: make_tbd.py [--cache build/macos-cross] [--output cmake/macos-cross/stubs/lib]
Needs: pip install lief, and pip's access to the wheels (about 200 MB).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import macho
import wheels

HERE = Path(__file__).resolve().parent
LIBCXX = "/usr/lib/libc++.1.dylib"
STUBS = {
    LIBCXX: "libc++.tbd",
    "/usr/lib/libobjc.A.dylib": "libobjc.tbd",
    "/System/Library/Frameworks/Foundation.framework/Versions/C/Foundation": (
        "Foundation.framework/Foundation.tbd"
    ),
    "/System/Library/Frameworks/Metal.framework/Versions/A/Metal": "Metal.framework/Metal.tbd",
}
MLX = ("mlx==0.32.4", "mlx-metal==0.32.4")
# Oldest macOS first: what an older one has, a newer one has too.
WHEELS: dict[str, dict[str, tuple[str, ...]]] = {
    "15.0": {
        "macosx_12_0_arm64": ("pyarrow==26.0.1",),
        "macosx_14_0_arm64": ("numpy==2.5.5", "onnxruntime==1.32.0"),
        "macosx_15_0_arm64": MLX,
    },
    "26.0": {"macosx_26_0_arm64": MLX},
}
TARGETS = "[ arm64-macos, arm64e-macos ]"


def render(install_name: str, symbols: Iterable[str]) -> str:
    """Return the text of a .tbd (version 4) for a library that exports ``symbols``."""
    names = ",\n        ".join(f"'{name}'" for name in sorted(symbols))
    return (
        f"--- !tapi-tbd\ntbd-version: 4\ntargets: {TARGETS}\ninstall-name: '{install_name}'\n"
        f"exports:\n  - targets: {TARGETS}\n    symbols: [\n        {names} ]\n...\n"
    )


def imported_symbols(folder: Path) -> dict[str, set[str]]:
    """Return the names that the arm64 binaries under ``folder`` import, by library."""
    found: dict[str, set[str]] = {library: set() for library in STUBS}
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".so", ".dylib") or not path.is_file():
            continue
        binary = macho.read(path)
        for library in STUBS:
            found[library] |= binary.imports.get(library, frozenset())
    return found


def main() -> None:
    """Fetch the wheels, gather their imports and write one set of stubs for each macOS version."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=HERE.parents[1] / "build" / "macos-cross")
    parser.add_argument("--output", type=Path, default=HERE / "stubs" / "lib")
    options = parser.parse_args()

    known: dict[str, set[str]] = {library: set() for library in STUBS}
    for macos, by_platform in WHEELS.items():
        for platform, pins in by_platform.items():
            archives = wheels.fetch(pins, platform, options.cache)
            folder = wheels.unpack(archives, options.cache / "unpacked" / f"stubs-{platform}")
            for library, names in imported_symbols(folder).items():
                known[library] |= names
        for library, file_name in STUBS.items():
            target = options.output / macos / file_name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(render(library, known[library]))
            print(f"{len(known[library]):5d} symbols  {target}")


if __name__ == "__main__":
    main()
