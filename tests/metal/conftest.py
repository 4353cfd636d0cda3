"""Fixtures of this folder."""

import warnings
from pathlib import Path

import pytest
from cpu_only import on_cpu
from emulated_only import skip_elsewhere
from safe_compile import compile_only_where_it_works

import mlx_tensorops as mto
from mlx_tensorops.verification import KernelWarning

__all__ = ["compile_only_where_it_works", "on_cpu"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    skip_elsewhere(items, HERE)


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
