"""Tools for the test suites of programs that use MLX."""

from typing import Any

__all__ = ["metal_kernel"]


def __getattr__(name: str) -> Any:
    """Import what needs more than MLX (NumPy, a compiler) only where it is used."""
    if name == "metal_kernel":
        from mlx_tensorops.testing.custom_kernel import metal_kernel

        return metal_kernel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
