"""Run any MLX program's own test suite on our ops, and see what it makes of them.

Take a suite that passes with plain MLX, and run it once more::

    pytest -p mlx_tensorops.testing.pytest_plugin --mto-patch --mto-drop-in --mto-require-calls

``--mto-patch``
    ``mlx_tensorops.patch()``: every ``nn.QuantizedLinear`` and ``nn.QuantizedEmbedding`` of the
    process, in models built before or during the tests, runs our ops.
``--mto-drop-in``
    ``mlx_tensorops.drop_in()``: ``mx.quantize``, ``mx.dequantize`` and ``mx.quantized_matmul``
    are our ops, in the tests and in every library that they call.
``--mto-require-calls``
    Fail the run when no call went through our ops: a suite that reaches none of them has
    judged nothing.

The report of both is printed at the end: calls that our ops ran, calls that they left to MLX,
each with its reason. Without these options the plugin does nothing. It is not loaded by being
installed; ``-p`` or ``pytest_plugins = ["mlx_tensorops.testing.pytest_plugin"]`` in the top
conftest.py asks for it.

Limits: processes that a test starts are not reached, and workers of pytest-xdist are reached but
count for themselves, so use ``--mto-require-calls`` without ``-n``. MLX's CPU backend accumulates
16-bit matmuls in 16 bits; a test whose expected numbers were taken from it can differ from ours,
which accumulates in float32.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

PLUGIN_NAME = "mlx_tensorops_session"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the three options."""
    group = parser.getgroup("mlx_tensorops")
    group.addoption(
        "--mto-patch", action="store_true", help="route the quantized layers of every model"
    )
    group.addoption(
        "--mto-drop-in", action="store_true", help="replace MLX's quantized ops by name"
    )
    group.addoption(
        "--mto-require-calls",
        action="store_true",
        help="fail the run when no call went through mlx_tensorops",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Patch before any test module is imported."""
    options = [config.getoption(name) for name in ("mto_patch", "mto_drop_in")]
    if any(options):
        config.pluginmanager.register(_Routed(*options), PLUGIN_NAME)
    elif config.getoption("mto_require_calls"):
        raise pytest.UsageError("--mto-require-calls needs --mto-patch or --mto-drop-in")


class _Routed:
    """Holds the patches for the length of the session."""

    def __init__(self, patch: bool, drop_in: bool) -> None:
        import mlx_tensorops as mto
        from mlx_tensorops.patch import records

        self._undo = ExitStack()
        mto.reset_report()
        # A suite that turns warnings into errors must not fail for being counted.
        self._undo.callback(setattr, records, "warn_on_fallback", records.warn_on_fallback)
        records.warn_on_fallback = False
        if patch:
            self._undo.enter_context(mto.patched())
        if drop_in:
            self._undo.enter_context(mto.drop_in())

    def n_calls(self) -> int:
        """Calls that our ops ran."""
        import mlx_tensorops as mto

        report = mto.report()
        return report.total_fused + sum(row.count for row in report.ops if row.outcome == "fused")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        is_required = session.config.getoption("mto_require_calls")
        if is_required and not self.n_calls() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        import mlx_tensorops as mto

        terminalreporter.section("mlx_tensorops")
        terminalreporter.write_line(mto.report().summary())
        if not self.n_calls():
            terminalreporter.write_line(
                "No call went through mlx_tensorops: this run proves nothing.", red=True
            )

    def pytest_unconfigure(self) -> None:
        self._undo.close()
