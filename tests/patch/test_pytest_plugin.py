"""The pytest plugin, run on small suites of its own in another process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("other_process")

SUITE = """
import mlx.core as mx
import mlx.nn as nn
from mlx.core import quantize

def test_layer():
    layer = nn.QuantizedLinear(64, 32)
    assert layer(mx.ones((1, 64))).tolist()

def test_other_dtype():
    layer = nn.QuantizedLinear(64, 32)
    assert layer(mx.ones((1, 64)).astype(mx.float64, stream=mx.cpu)).dtype == mx.float64

def test_op():
    assert quantize(mx.ones((2, 64)))[0].tolist()
"""
NO_CALLS = "def test_nothing():\n    pass\n"
FAILING = SUITE + "\ndef test_failing():\n    assert False\n"


def run_suite(folder: Path, suite: str, *options: str) -> tuple[int, str]:
    (folder / "test_theirs.py").write_text(suite)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder]
    command += ["-p", "mlx_tensorops.testing.pytest_plugin", *options, folder]
    run = subprocess.run(
        command, cwd=folder, env=os.environ | {"COLUMNS": "200"}, capture_output=True, text=True
    )
    return run.returncode, run.stdout + run.stderr


def test_both_options(tmp_path):
    code, output = run_suite(
        tmp_path, SUITE, "--mto-patch", "--mto-drop-in", "--mto-require-calls", "-W", "error"
    )
    assert code == 0, output
    assert "3 passed" in output and "= mlx_tensorops =" in output
    assert "  quantize [cpu] fused: " in output
    assert "module calls through our ops: 1, " in output
    assert "(every model) (QuantizedLinear): MLX's code ran 1 calls: " in output


def test_each_option_alone(tmp_path):
    code, output = run_suite(tmp_path, SUITE, "--mto-patch", "--mto-require-calls")
    assert code == 0 and "  quantized_matmul [cpu] fused: 1" in output, output
    assert "quantize [" not in output
    code, output = run_suite(tmp_path, SUITE, "--mto-drop-in", "--mto-require-calls")
    assert code == 0 and "  quantize [cpu] fused: " in output, output
    assert "modules patched since the last reset: 0" in output


def test_inert_without_options(tmp_path):
    code, output = run_suite(tmp_path, SUITE)
    assert code == 0 and "mlx_tensorops" not in output, output


@pytest.mark.parametrize(("suite", "expected"), [(NO_CALLS, 1), (FAILING, 1)], ids=["none", "fail"])
def test_exit_status(tmp_path, suite, expected):
    code, output = run_suite(tmp_path, suite, "--mto-patch", "--mto-require-calls")
    assert code == expected, output
    assert ("this run proves nothing" in output) == (suite is NO_CALLS)


def test_require_calls_needs_a_route(tmp_path):
    code, output = run_suite(tmp_path, SUITE, "--mto-require-calls")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "--mto-require-calls needs --mto-patch or --mto-drop-in" in output
