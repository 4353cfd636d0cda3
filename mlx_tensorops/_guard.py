"""Refuse an environment that cannot work with one sentence, before anything in it fails obscurely.

The extension is bound to one MLX release (its C++ ABI) and to one nanobind ABI (MLX's types).
Either can differ in the running environment; unchecked, that shows as an undefined symbol at
import, or as a ``TypeError`` at the first call.
"""

from __future__ import annotations

import importlib
import mmap
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import NoReturn

_NANOBIND_KEY = re.compile(rb"nanobind_system_[A-Za-z0-9_]+_v[0-9]+[a-z_]*")


def check() -> None:
    """Import MLX and the extension, and see that they share their types.

    Raises:
        ImportError: with what was expected and what was found.
    """
    build = _import_build_info()
    core = _import_mlx_core(build.MLX_VERSION)
    extension = _import_extension(build, core)
    try:
        shared = extension.smoke(core.array(1.0))
    except TypeError:
        shared = False
    if not shared:
        _fail_foreign_types(build, core)


def _import_build_info() -> ModuleType:
    try:
        return importlib.import_module("mlx_tensorops._build_info")
    except ModuleNotFoundError:
        _fail_not_built()


def _import_mlx_core(expected: str) -> ModuleType:
    try:
        core = importlib.import_module("mlx.core")
    except ImportError as error:
        _fail_without_mlx(expected, error)
    # Without a compiled module for this Python, mlx/core/ imports as an empty namespace.
    found = getattr(core, "__version__", None)
    if found is None:
        python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        where = ", ".join(getattr(core, "__path__", ["an unknown place"]))
        _fail(f"expected mlx {expected} compiled for {python}, found none in {where}", expected)
    if found != expected:
        _fail(f"expected mlx {expected}, found mlx {found} ({core.__file__})", expected)
    return core


def _import_extension(build: ModuleType, core: ModuleType) -> ModuleType:
    try:
        return importlib.import_module("mlx_tensorops._ext")
    except ModuleNotFoundError:
        _fail_not_built()
    except ImportError as error:
        reason = str(error)
    if _nanobind_key(core) not in (None, build.NANOBIND_ABI):
        _fail_foreign_types(build, core)
    # The loader's own text names the cause well, unless that is a mangled C++ name.
    if "undefined symbol" in reason or "Symbol not found" in reason:
        reason = "that a function is missing which the build had"
    _fail(
        f"its compiled part does not load beside {core.__file__}: expected the libmlx of "
        f"mlx {build.MLX_VERSION}, found {reason}",
        build.MLX_VERSION,
    )


def _fail_without_mlx(expected: str, error: ImportError) -> NoReturn:
    found = _installed_mlx()
    if found is None:
        _fail(f"expected mlx {expected}, found no mlx", expected)
    if found != expected:
        _fail(f"expected mlx {expected}, found mlx {found}", expected)
    if "libmlx" in str(error):
        _fail(f"expected mlx {expected} with a backend, found it without one (no libmlx)", expected)
    _fail(f"expected mlx {expected}, found it but mlx.core does not load: {error}", expected)


def _fail_not_built() -> NoReturn:
    folder = Path(__file__).parent
    expected = f"_ext{EXTENSION_SUFFIXES[0]}"
    found = ", ".join(sorted(path.name for path in folder.glob("_ext*.so"))) or "none"
    raise ImportError(
        f"mlx_tensorops has no compiled part for this Python: expected {expected} and "
        f"_build_info.py in {folder}, found {found}. In a source tree, run `pip install .` and "
        "start Python in another folder."
    ) from None


def _fail_foreign_types(build: ModuleType, core: ModuleType) -> NoReturn:
    found = _nanobind_key(core) or "an unknown one"
    if found == build.NANOBIND_ABI:
        found = "that key, but not its types"
    _fail(
        f"expected mlx.core to have the nanobind ABI {build.NANOBIND_ABI}, found {found} "
        f"({core.__file__})",
        build.MLX_VERSION,
    )


def _fail(difference: str, mlx_version: str) -> NoReturn:
    if sys.platform == "linux":
        remedy = "pip install 'mlx-tensorops[cpu]' (or 'mlx-tensorops[cuda13]')"
    else:
        remedy = f"pip install --force-reinstall 'mlx=={mlx_version}'"
    raise ImportError(f"mlx_tensorops: {difference}. To mend it: {remedy}.") from None


def _installed_mlx() -> str | None:
    from importlib import metadata

    try:
        return metadata.version("mlx")
    except metadata.PackageNotFoundError:
        return None


def _nanobind_key(core: ModuleType) -> str | None:
    if not core.__file__:
        return None
    with (
        open(core.__file__, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        match = _NANOBIND_KEY.search(content)
        return match[0].decode() if match else None
