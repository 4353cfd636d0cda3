"""Run Metal kernels on Linux: compile .metal source with clang, execute it under strict rules.

    from mlx_tensorops.testing import emulator

    library = emulator.compile(source)
    kernel = library.pipeline("axpy", constants={0: True})
    kernel.launch({0: x, 1: y, 2: 2.0}, grid=(4, 1, 1), threadgroup=(32, 1, 1))

Nothing here says anything about the speed of a GPU.
"""

from mlx_tensorops.testing.emulator.checks import check
from mlx_tensorops.testing.emulator.errors import (
    CompileError,
    CompilerMissing,
    EmulatorError,
    Fault,
)
from mlx_tensorops.testing.emulator.findings import Finding
from mlx_tensorops.testing.emulator.library import Kernel, Launch, Library, compile
from mlx_tensorops.testing.emulator.policies import Policies
from mlx_tensorops.testing.emulator.roofline import CHIPS, Chip, Estimate

__all__ = [
    "CHIPS",
    "Chip",
    "CompileError",
    "CompilerMissing",
    "EmulatorError",
    "Estimate",
    "Fault",
    "Finding",
    "Kernel",
    "Launch",
    "Library",
    "Policies",
    "check",
    "compile",
]
