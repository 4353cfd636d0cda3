"""Our ops on their Metal kernels, on Linux: what launches them on a Mac, and the emulator."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from mlx_tensorops import _ext
from mlx_tensorops.testing import emulator

Size = tuple[int, int, int]
_ACTIVE = threading.Lock()


@dataclass(frozen=True)
class KernelLaunch:
    """One launch of a kernel.

    Attributes:
        op: the op, whose kernels are in metal/<op>.metal.
        kernel: the instance of the kernel's template.
        constants: values of function constants by index.
        threadgroups: how many there were along each axis.
        threads: the threads of a threadgroup along each axis.
        counters: costs by name, see `mlx_tensorops.testing.emulator.Launch`.
        buffer_bytes: with ``trace``, bytes (read, written) by buffer index.
        findings: what the emulator noticed; only notes, as anything else raises.
    """

    op: str
    kernel: str
    constants: dict[int, bool | int | float]
    threadgroups: Size
    threads: Size
    counters: dict[str, int]
    buffer_bytes: dict[int, tuple[int, int]]
    findings: tuple[emulator.Finding, ...]


@dataclass
class Run:
    """What happened under `emulated_metal`.

    Attributes:
        launches: in order.
        trials: with ``verify``, the launches that kernels were verified by.
    """

    launches: list[KernelLaunch] = field(default_factory=list)
    trials: list[KernelLaunch] = field(default_factory=list)

    def total(self, counter: str) -> int:
        """The sum of a counter over all launches."""
        return sum(launch.counters[counter] for launch in self.launches)

    @property
    def findings(self) -> tuple[emulator.Finding, ...]:
        """What the emulator noticed in all launches."""
        return tuple(finding for launch in self.launches for finding in launch.findings)


@contextmanager
def emulated_metal(
    layout: str = "m5",
    order: str = "forward",
    seed: int = 0,
    *,
    trace: bool = False,
    values: bool = False,
    macos: tuple[int, int] = (26, 2),
    architecture: str = "applegpu_g17g",
    edit_source: Callable[[str], str] | None = None,
    verify: bool = False,
    **policies: Any,
) -> Iterator[Run]:
    """Let the ops of CPU streams run their Metal kernels, through the emulator, while in use.

    What a Mac would do is done: choice of the kernel, its source, constants, buffers and grid.
    Calls are made with ``force_fused=True`` or ``route="ours"`` to reach kernels whose case MLX's
    own cover too. It holds for arrays that are evaluated inside, on any thread.

    Args:
        layout: which element of a cooperative tensor a lane holds: "m5", "grid" or "random".
        order: the order of threads and threadgroups: "forward", "reverse" or "random".
        seed: of what is random.
        trace: watch every access to memory, see `mlx_tensorops.testing.emulator.compile`.
        values: follow every value that was never set, see the same.
        macos: the version that the ops believe to run on.
        architecture: the GPU's name, as MLX prints it.
        edit_source: changes the text of each kernel before it is compiled, to plant faults.
        verify: compare kernels with the CPU's before they are used, as a Mac does; see
            `mlx_tensorops.verification`, whose folder of verdicts is used.
        policies: further fields of `mlx_tensorops.testing.emulator.Policies`.

    Yields:
        The launches, with counters and findings.

    Raises:
        ValueError: a policy has no such value.
        TypeError: there is no such policy.
        RuntimeError: emulation is on already.
        emulator.Fault: at evaluation, where a kernel is found wrong.
    """
    cells = "grid8" if layout == "grid" else layout
    chosen = emulator.Policies(layout=cells, order=order, seed=seed, **policies)
    if not _ACTIVE.acquire(blocking=False):
        raise RuntimeError("[emulated_metal] is in use already.")
    run = Run()
    try:
        edit = edit_source or str
        launcher = _launcher(run, chosen, edit, trace=trace, values=values)
        _ext.set_metal_emulation(
            launcher,
            lambda kernel: edit(kernel.source),
            *macos,
            architecture,
            f"emulated {layout} {order} {seed}",
            verify,
        )
        yield run
    finally:
        _ext.set_metal_emulation(None)
        _ACTIVE.release()


def _launcher(
    run: Run, policies: emulator.Policies, edit_source: Callable[[str], str], **build: bool
) -> Callable[..., None]:
    def launch(
        kernel: _ext.MetalKernel,
        buffers: Sequence[tuple[int, int, int]],
        threadgroup_memory: Sequence[tuple[int, int]],
        threadgroups: Size,
        threads: Size,
        trial: bool,
    ) -> None:
        constants = dict(kernel.constants)
        library = _library(edit_source(kernel.source), **build)
        launched = library.pipeline(kernel.host_name, constants).launch(
            {index: _memory(address, size) for index, address, size in buffers},
            threadgroups,
            threads,
            threadgroup_memory=dict(threadgroup_memory),
            policies=policies,
        )
        (run.trials if trial else run.launches).append(
            KernelLaunch(
                kernel.op,
                kernel.function,
                constants,
                threadgroups,
                threads,
                dict(launched.counters),
                dict(launched.buffer_bytes),
                launched.findings,
            )
        )

    return launch


@lru_cache(maxsize=256)
def _library(source: str, trace: bool, values: bool) -> emulator.Library:
    return emulator.compile(source, trace=trace, values=values)


def _memory(address: int, size: int) -> np.ndarray[Any, Any] | None:
    if size == 0:
        return None
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address)), np.uint8)
