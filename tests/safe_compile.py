"""A fixture for tests that run mlx-lm: it compiles, which MLX cannot do with every g++."""

import functools

import mlx.core as mx
import pytest

from mlx_tensorops.cli.compiler import compile_failure


@functools.cache
def failure() -> str:
    return compile_failure()


@pytest.fixture(scope="module", autouse=True)
def compile_only_where_it_works():
    if failure():
        mx.disable_compile()
    yield
    mx.enable_compile()
