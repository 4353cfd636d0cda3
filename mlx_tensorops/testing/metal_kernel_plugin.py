"""Run the tests of a program that has Metal kernels of its own where there is no Metal.

::

    pytest -p mlx_tensorops.testing.metal_kernel_plugin

The whole session runs inside `mlx_tensorops.testing.metal_kernels()`: tests that are skipped
without Metal run, and kernels of `mx.fast.metal_kernel` are executed by the emulator.

``--metal-check``
    Refuse what only Metal's own compiler would: misuse of address spaces above all.
``--metal-trace``
    Watch every access to memory: finds races and accesses a byte outside, at several times the
    cost.
``--metal-order forward | reverse | random``
    The order in which threads and threadgroups run; a kernel is right if it is right in all.

At the end the number of kernel launches is printed. Processes that a test starts are not reached.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

_undo = ExitStack()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("mlx_tensorops")
    group.addoption(
        "--metal-check", action="store_true", help="refuse what only Metal's own compiler would"
    )
    group.addoption(
        "--metal-trace", action="store_true", help="watch every access to memory of Metal kernels"
    )
    group.addoption(
        "--metal-order",
        choices=("forward", "reverse", "random"),
        default="forward",
        help="in which order threads and threadgroups of Metal kernels run",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Patch before any test module is imported."""
    from mlx_tensorops.testing import emulator, metal_kernels

    metal = metal_kernels(
        check=config.getoption("metal_check"),
        trace=config.getoption("metal_trace"),
        policies=emulator.Policies(order=config.getoption("metal_order")),
    )
    _undo.enter_context(metal)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the run proves."""
    from mlx_tensorops.testing.custom_kernel import launches

    counted = ", ".join(f"{name} {n}" for name, n in sorted(launches.items()))
    terminalreporter.write_line(f"Metal kernels launched: {counted or 'none'}")


def pytest_unconfigure() -> None:
    """Give MLX's names back."""
    _undo.close()
