"""Fixtures of this folder."""

import sys
import warnings
from pathlib import Path

import pytest
from cpu_only import on_cpu
from safe_compile import compile_only_where_it_works

import mlx_tensorops as mto
from mlx_tensorops.verification import KernelWarning

__all__ = ["compile_only_where_it_works", "on_cpu"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """On Linux nothing is skipped: without a compiler the tests fail, and say what to install."""
    if sys.platform == "linux":
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="the Metal emulator runs on Linux only"))


@pytest.fixture(autouse=True)
def unexpected_warnings_fail():
    """A kernel that is found wrong fails the test that does not expect it."""
    mto.reset_report()
    with warnings.catch_warnings():
        warnings.simplefilter("error", KernelWarning)
        yield


@pytest.fixture(autouse=True)
def verdicts_folder(tmp_path, monkeypatch):
    """Verdicts about kernels are kept for one test alone."""
    folder = tmp_path / "verdicts"
    monkeypatch.setenv("MLX_TENSOROPS_VERDICTS", str(folder))
    return folder
