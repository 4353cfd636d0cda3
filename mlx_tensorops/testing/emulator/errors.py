"""What can go wrong between a .metal file and its results."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_tensorops.testing.emulator.findings import Finding


class EmulatorError(RuntimeError):
    """Any error of the emulator that is not a bad argument."""


class CompilerMissing(EmulatorError):
    """No C++ compiler that the emulator can use."""


class CompileError(EmulatorError):
    """The source is not what the compiler, or the rewriter before it, accepts."""


class Fault(EmulatorError):
    """A launch found the kernel wrong; `findings` says where and how."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(str(finding) for finding in findings))
