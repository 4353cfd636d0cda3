"""Run programs with Metal kernels of their own where there is no Metal."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.custom_kernel import metal_kernel


@contextmanager
def metal_kernels(
    *, check: bool = False, trace: bool = False, policies: emulator.Policies | None = None
) -> Iterator[None]:
    """Let `mx.fast.metal_kernel` make kernels that run here, and programs believe in Metal.

    Meanwhile `mx.fast.metal_kernel` is `mlx_tensorops.testing.metal_kernel`,
    `mx.metal.is_available()` is true, and `mx.gpu` is `mx.cpu`, the default device. MLX's own
    operations run on the CPU as ever.

    Programs ask when they are imported, and make kernels then: import them inside. A kernel that
    was made inside keeps working outside.

    Args:
        check: refuse what only Metal's own compiler would, see `emulator.check`.
        trace: watch every access to memory, see `emulator.compile`.
        policies: how to decide what Metal leaves open.

    Example:
        >>> with metal_kernels():
        ...     from mlx_lm.models.bitlinear_layers import BitLinear
        ...     y = BitLinear(64, 32)(mx.ones((1, 64)))
    """
    kernel = functools.partial(metal_kernel, check=check, trace=trace, policies=policies)
    functools.update_wrapper(kernel, metal_kernel)
    replacements: list[tuple[Any, str, Any]] = [
        (mx.fast, "metal_kernel", kernel),
        (mx.metal, "is_available", lambda: True),
        (mx, "gpu", mx.cpu),
    ]
    before = [getattr(owner, name) for owner, name, _ in replacements]
    device = mx.default_device()
    mx.set_default_device(mx.cpu)
    for owner, name, ours in replacements:
        setattr(owner, name, ours)
    try:
        yield
    finally:
        for (owner, name, _), original in zip(replacements, before, strict=True):
            setattr(owner, name, original)
        mx.set_default_device(device)
