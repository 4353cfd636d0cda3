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
