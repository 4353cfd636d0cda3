#!/usr/bin/env python3
"""Build the extension for macOS on Apple silicon, on any machine, and prove its link strict.

For each macOS version: fetch Apple's build of MLX with pip, configure the project's own
CMakeLists.txt with the toolchain beside this file, link without leaving any symbol for run time,
and check the result.

Usage: build.py [--macos VERSION]... [--self-test]
Needs: pip install ziglang lief nanobind cmake ninja
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import macho
import report
import selftest
import wheels
from project import Project

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Each has an MLX wheel of its own, built for another generation of Metal (3.2 and 4.0).
PLATFORMS = {"26.0": "macosx_26_0_arm64", "15.0": "macosx_15_0_arm64"}


def main() -> int:
    """Build for each chosen macOS version; returns 1 if any build is not what it must be."""
    options = _parse_arguments()
    pins = _mlx_pins(options.source)
    failures: list[str] = []
    for macos in options.macos or PLATFORMS:
        archives = wheels.fetch(pins, PLATFORMS[macos], options.build_dir)
        mlx = wheels.unpack(archives, options.build_dir / "unpacked" / PLATFORMS[macos]) / "mlx"
        project = Project(options.source, options.build_dir, macos, mlx, options.jobs)
        project.configure()
        project.build()
        expected = report.Expected.of(project)
        extension = macho.read(project.extension())
        report.show(extension, macos, project.folder / "symbols.txt")
        found = report.problems(extension, expected)
        if options.self_test:
            found += selftest.run(project, expected)
        failures += [f"macOS {macos}: {problem}" for problem in found]
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--macos", action="append", choices=PLATFORMS, help="default: each")
    parser.add_argument("--source", type=Path, default=ROOT, help="the project's folder")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build" / "macos-cross")
    parser.add_argument("--jobs", type=int, help="default: ninja's own choice")
    parser.add_argument(
        "--self-test", action="store_true", help="plant missing symbols; each must be noticed"
    )
    return parser.parse_args()


def _mlx_pins(source: Path) -> list[str]:
    match = re.search(r'"mlx==([0-9.]+)', (source / "pyproject.toml").read_text())
    if match is None:
        raise RuntimeError(f"{source / 'pyproject.toml'} pins no mlx==VERSION")
    return [f"mlx=={match[1]}", f"mlx-metal=={match[1]}"]


if __name__ == "__main__":
    sys.exit(main())
