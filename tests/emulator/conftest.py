import apple_kernels
import pytest


@pytest.fixture(scope="session")
def apple():
    """Compiles headers of Apple's kernels with some of their templates instantiated."""
    from mlx_tensorops.testing import emulator

    include = apple_kernels.include_folder()

    def compile(*headers, **instantiations):
        text = apple_kernels.source(*headers)
        return emulator.compile(text, include_dirs=[include], instantiations=instantiations)

    return compile
