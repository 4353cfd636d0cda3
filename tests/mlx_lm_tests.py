"""mlx-lm's own tests, from the source distribution of the version that is installed."""

import importlib.metadata
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest


def folder(cache: pytest.Cache) -> Path:
    """The tests, fetched from PyPI once and kept in pytest's cache; without them, skips."""
    version = importlib.metadata.version("mlx-lm")
    kept = Path(cache.mkdir(f"mlx-lm-{version}"))
    if not (kept / "tests").exists():
        _download(version, kept)
    return kept / "tests"


def _download(version: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
    command += ["--no-binary", ":all:", f"mlx-lm=={version}"]
    download = subprocess.run(command, capture_output=True, text=True)
    if download.returncode:
        pytest.skip(f"the source distribution of mlx-lm cannot be had: {download.stderr[-300:]}")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        for member in source.getmembers():
            _, _, inner = member.name.partition("/")
            if inner.startswith("tests/") and member.isfile() and ".." not in inner:
                target = folder / f"partial-{os.getpid()}" / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.extractfile(member).read())
    (folder / f"partial-{os.getpid()}" / "tests").rename(folder / "tests")
