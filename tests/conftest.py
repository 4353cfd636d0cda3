"""Options of the suite, and the case of a failed test in its report."""

from collections.abc import Sequence

import mlx.core as mx
import pytest
import suite
from cases import BACKENDS, Backend, Case

EMULATED = "metal-emulated"
ON_A_MAC = mx.metal.is_available()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        action="append",
        choices=[*sorted(BACKENDS), EMULATED],
        help="a backend to test, may be repeated; metal-emulated is every layout and order once, "
        "or all of their pairs with --full (default: cpu, with metal on a Mac, else emulated)",
    )
    parser.addoption(
        "--full", action="store_true", help="test the product of all options, not one case a kernel"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: runs with --full only (long, or needs much memory)")
    config.addinivalue_line("markers", "kernels(*names): concerns the kernels of these backends")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="runs with --full only"))


def chosen_backends(config: pytest.Config) -> list[Backend]:
    names = config.getoption("--backend") or ["cpu", "metal" if ON_A_MAC else EMULATED]
    emulated = [name for name in BACKENDS if name.startswith(EMULATED)]
    # Every layout and every order is among every fourth of the nine.
    expanded = emulated if config.getoption("--full") else emulated[::4]
    return [BACKENDS[n] for name in names for n in (expanded if name == EMULATED else [name])]


def pairs(backends: list[Backend], cases: Sequence[Case], every: int) -> list[tuple]:
    """Each case on each backend; of emulated ones, where ``every`` is not 0, only one in turn, and
    only for every so many cases: each kernel is compiled, which takes longest.
    """
    emulated = [backend for backend in backends if backend.emulation]
    result = []
    for i, case in enumerate(cases):
        turn = emulated if every == 0 else [emulated[i % len(emulated)]] if emulated else []
        chosen = turn if every == 0 or i % every == 0 else []
        result += [(b, case) for b in backends if not b.emulation or b in chosen]
    return result


# Of how many cases one runs on an emulated backend. A class of checks may have numbers of its own,
# where nearly every case compiles another kernel.
EVERY = {"test_forward": 0, "test_vjp": 1, "test_jvp": 1, "others": 4}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    full = metafunc.config.getoption("--full")
    names = metafunc.fixturenames
    # A module may say whose kernels its op has, where these are not all; a test, whose it concerns.
    marker = metafunc.definition.get_closest_marker("kernels")
    kernels = marker.args if marker else getattr(metafunc.module, "KERNELS", None)
    backends = [b for b in chosen_backends(metafunc.config) if not kernels or b.kernels in kernels]
    if issubclass(metafunc.cls or object, suite.Checks) and "case" in names:
        cases = metafunc.cls.full_cases() if full else metafunc.cls.cases
        numbers = getattr(metafunc.cls, "every", EVERY)
        every = 0 if full else numbers.get(metafunc.function.__name__, numbers["others"])
        metafunc.parametrize("backend,case", pairs(backends, cases, every), ids=str)
        return
    if not full:
        first = next((b for b in backends if b.emulation), None)
        backends = [b for b in backends if not b.emulation or b is first]
    if "isa" in names:
        from mlx_tensorops import _ext

        # Instruction sets are the CPU kernels'.
        isas = {
            backend: [_ext.cpu_isa()] if backend.emulation else _ext.cpu_isas()
            for backend in backends
        }
        both = [(backend, isa) for backend in backends for isa in isas[backend]]
        metafunc.parametrize("backend,isa", both, ids=str, indirect=["isa"])
    elif "backend" in names:
        metafunc.parametrize("backend", backends, ids=str)


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


@pytest.fixture(autouse=True)
def _active_backend(request: pytest.FixtureRequest):
    if "backend" not in request.fixturenames:
        yield
        return
    with request.getfixturevalue("backend").active():
        yield


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
