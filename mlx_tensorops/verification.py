"""Metal kernels are compared with the CPU's before they are trusted; this is what comes of it.

The first use of a kernel on a Mac runs it on a small and on a large problem (2 million values, or
weights with as few rows of x as reach the kernel, at most 96) beside the CPU kernel, which must
give the same bits: a second or two in the emulator, not measured on a Mac. That is once for a
kernel, a GPU and a build of macOS: verdicts are kept in ``$MLX_TENSOROPS_VERDICTS``, or else in
``$XDG_CACHE_HOME/mlx_tensorops/verdicts`` (``~/.cache/...``). ``MLX_TENSOROPS_VERIFY=0`` in the
environment turns it off.

A kernel that fails, or that the device's compiler refuses, is not used: MLX's op takes its calls,
with one `KernelWarning` and lines in ``mlx_tensorops.report()``.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from mlx_tensorops import _ext


class KernelWarning(UserWarning):
    """A Metal kernel is not used on this device."""


@dataclass(frozen=True)
class Verdict:
    """What is known about one kernel.

    Attributes:
        kernel: its name.
        fault: what is wrong with it, empty for one that is used.
        remembered: whether another process found it out.
    """

    kernel: str
    fault: str
    remembered: bool


def verdicts() -> list[Verdict]:
    """What this process knows about kernels, in the order of their names."""
    found = (
        Verdict(kernel.pipeline_name, fault, remembered)
        for kernel, fault, remembered in _ext.verdicts()
    )
    return sorted(found, key=lambda verdict: verdict.kernel)


def warn(message: str) -> None:
    """Tell of a kernel that is not used; the extension calls it, from within an op's call."""
    # Of the caller of the op's function.
    warnings.warn(message, KernelWarning, stacklevel=3)
