"""The kernels of this package run on the CPU; where MLX prefers a GPU, these tests still do."""

import mlx.core as mx
import pytest

PREFERS_CPU = mx.default_device().type == mx.cpu


@pytest.fixture(autouse=True)
def on_cpu():
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


@pytest.fixture
def other_process():
    """Asked for by tests that start a process, whose default device is MLX's own choice."""
    if not PREFERS_CPU:
        pytest.skip("no kernels for the default device of a new process")


@pytest.fixture
def tracing(compile_only_where_it_works):
    """Asked for by tests that need mx.compile to trace; without a C++ compiler it runs as is."""
    calls = []
    traced = mx.compile(lambda x: calls.append(None) or x + 1)
    mx.eval(traced(mx.ones(1)), traced(mx.ones(1)))
    if len(calls) > 1:
        pytest.skip("mx.compile does not compile here")
