"""Tools for the test suites of programs that use MLX, and for our own."""

from importlib import import_module
from typing import Any

# Imported only where they are used: they need more than MLX (NumPy, a compiler).
_MODULES = {
    "emulated_metal": "metal_emulation",
    "metal_kernel": "custom_kernel",
    "metal_kernels": "metal_programs",
}
__all__ = ["emulated_metal", "metal_kernel", "metal_kernels"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
