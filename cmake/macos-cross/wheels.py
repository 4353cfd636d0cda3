"""Fetch macOS wheels with pip and unpack them, with everything kept under one cache folder."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

# One serves for all: neither libmlx nor the nanobind key depends on it.
PYTHON_VERSION = "312"


def fetch(requirements: Sequence[str], platform: str, cache: Path) -> list[Path]:
    """Return the wheels of exactly pinned ``requirements``, downloading what is not cached."""
    folder = cache / "wheels" / platform
    missing = [pin for pin in requirements if not _cached(pin, folder)]
    if missing:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", "--platform", platform]
        command += ["--python-version", PYTHON_VERSION, "--dest", str(folder), *missing]
        subprocess.run(command, check=True)
    wheels = [_cached(pin, folder) for pin in requirements]
    absent = [pin for pin, wheel in zip(requirements, wheels, strict=True) if wheel is None]
    if absent:
        raise RuntimeError(f"pip downloaded no wheel for {', '.join(absent)} on {platform}")
    return [wheel for wheel in wheels if wheel is not None]


def unpack(wheels: Sequence[Path], destination: Path) -> Path:
    """Unpack ``wheels`` together into ``destination``, unless that was already done."""
    stamp = destination / ".unpacked"
    names = "\n".join(wheel.name for wheel in wheels)
    if not (stamp.is_file() and stamp.read_text() == names):
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(destination)
        stamp.write_text(names)
    return destination


def _cached(pin: str, folder: Path) -> Path | None:
    name, version = pin.split("==")
    stem = re.sub(r"[-_.]+", "_", name)
    return next(iter(sorted(folder.glob(f"{stem}-{version}-*.whl"))), None)
