import apple_kernels
import pytest
from cpu_only import on_cpu, tracing
from safe_compile import compile_only_where_it_works

__all__ = ["apple", "compile_only_where_it_works", "on_cpu", "tracing"]


@pytest.fixture(scope="session")
def apple():
    """Compiles headers of Apple's kernels with some of their templates instantiated."""
    from mlx_tensorops.testing import emulator

    include = apple_kernels.include_folder()

    def compile(*headers, **instantiations):
        text = apple_kernels.source(*headers)
        return emulator.compile(text, include_dirs=[include], instantiations=instantiations)

    return compile
