"""The emulator's tests: where they run, and Apple's kernels under more than one set of rules."""

from pathlib import Path

import apple_kernels
import pytest
from cpu_only import on_cpu, tracing
from emulated_only import skip_elsewhere
from safe_compile import compile_only_where_it_works

__all__ = ["apple", "compile_only_where_it_works", "default_policies", "on_cpu", "tracing"]

HERE = Path(__file__).parent
# With --full, every test of Apple's kernels that leaves the choice open runs under each of these.
SWEEP = {
    "reverse": {"order": "reverse", "guard": "begin"},
    "random1": {"order": "random", "seed": 1},
    "random2": {"order": "random", "seed": 2, "guard": "begin"},
}
NOT_SWEPT = ("test_apple_headers", "test_apple_sweeps")  # compiles only; sweeps by itself


def pytest_collection_modifyitems(items):
    skip_elsewhere(items, HERE)


def pytest_generate_tests(metafunc):
    name = metafunc.module.__name__.split(".")[-1]
    is_judge = name.startswith("test_apple_") and name not in NOT_SWEPT
    if is_judge and "apple" in metafunc.fixturenames and metafunc.config.getoption("--full"):
        metafunc.parametrize("default_policies", ["forward", *SWEEP], indirect=True)
        metafunc.parametrize("apple", ["plain", "trace"], indirect=True, scope="session")


@pytest.fixture(autouse=True)
def default_policies(request, monkeypatch):
    """What launches of the test take that name no policies."""
    from mlx_tensorops.testing.emulator import Kernel, Policies

    choice = SWEEP.get(getattr(request, "param", ""))
    if choice is not None:
        policies, launch = Policies(**choice), Kernel.launch

        def launch_swept(*args, **options):
            return launch(*args, **{**options, "policies": options.get("policies") or policies})

        monkeypatch.setattr(Kernel, "launch", launch_swept)


@pytest.fixture(scope="session")
def apple(request):
    """Compiles headers of Apple's kernels with some of their templates instantiated."""
    from mlx_tensorops.testing import emulator

    include = apple_kernels.include_folder()
    trace = getattr(request, "param", "plain") == "trace"

    def compile(*headers, **instantiations):
        text = apple_kernels.source(*headers)
        return emulator.compile(
            text, include_dirs=[include], instantiations=instantiations, trace=trace
        )

    return compile
