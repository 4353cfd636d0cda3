"""Options of the suite, and the case of a failed test in its report."""

import mlx.core as mx
import pytest
import suite
from cases import BACKENDS, Case


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        action="append",
        choices=sorted(BACKENDS),
        help="backend to test, may be repeated (default: cpu)",
    )
    parser.addoption(
        "--full", action="store_true", help="test the product of all options, not one case a kernel"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: runs with --full only (long, or needs much memory)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="runs with --full only"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    full = metafunc.config.getoption("--full")
    if "backend" in metafunc.fixturenames:
        names = metafunc.config.getoption("--backend") or ["cpu"]
        metafunc.parametrize("backend", [BACKENDS[name] for name in names], ids=str)
    if "isa" in metafunc.fixturenames:
        from mlx_tensorops import _ext

        metafunc.parametrize("isa", _ext.cpu_isas(), indirect=True)
    if "case" in metafunc.fixturenames and issubclass(metafunc.cls or object, suite.Checks):
        cases = metafunc.cls.full_cases() if full else metafunc.cls.cases
        metafunc.parametrize("case", cases, ids=str)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    outcome = yield
    report = outcome.get_result()
    case = getattr(item, "callspec", None) and item.callspec.params.get("case")
    if report.failed and isinstance(case, Case):
        report.sections.append(("case", f"{case!r}\nseed {case.seed}"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    mx.random.seed(0)


@pytest.fixture
def isa(request: pytest.FixtureRequest):
    """Each instruction set that this CPU has, in use for the test."""
    from mlx_tensorops import _ext

    best = _ext.cpu_isa()
    _ext.set_cpu_isa(request.param)
    yield request.param
    _ext.set_cpu_isa(best)


@pytest.fixture
def threads():
    """Sets the number of threads of the CPU kernels; undone afterwards."""
    from mlx_tensorops import _ext

    before = _ext.num_threads()
    yield _ext.set_num_threads
    _ext.set_num_threads(before)
