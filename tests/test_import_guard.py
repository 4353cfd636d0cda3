"""`import mlx_tensorops` in environments that cannot work: one readable ImportError, nothing else.

Each test lays out a folder with this package's own first lines and stand-ins for MLX and for the
extension, and imports it in a fresh interpreter that sees nothing but that folder.
"""

import importlib.util
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import mlx.core as mx
import pytest

VERSION = "0.32.4"
KEY = "nanobind_system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1_a1_v22"
OTHER_KEY = "nanobind_system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1_a1_v15"
PACKAGE = Path(importlib.util.find_spec("mlx_tensorops").submodule_search_locations[0])

FIRST_LINES = "from mlx_tensorops import _guard\n_guard.check()\n"
WORKING_CORE = f"""
__version__ = "{VERSION}"  # {KEY}
array = float
"""
WORKING_EXTENSION = "smoke = lambda value: True"
REFUSING_EXTENSION = """
def smoke(value):
    raise TypeError("smoke(): incompatible function arguments")
"""


class Environment:
    """A folder that is all of site-packages to the interpreters started on it."""

    def __init__(self, folder: Path):
        self.folder = folder
        package = folder / "mlx_tensorops"
        package.mkdir()
        shutil.copy(PACKAGE / "_guard.py", package)
        self.write("mlx_tensorops/__init__.py", FIRST_LINES)
        build_info = f"MLX_VERSION = '{VERSION}'\nNANOBIND_ABI = '{KEY}'\n"
        self.write("mlx_tensorops/_build_info.py", build_info)
        self.write("mlx_tensorops/_ext.py", WORKING_EXTENSION)
        self.write("mlx/core.py", WORKING_CORE)
        self.install_mlx_metadata(VERSION)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def install_mlx_metadata(self, version: str) -> None:
        self.remove_mlx_metadata()
        self.write(
            f"mlx-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: mlx\nVersion: {version}\n",
        )

    def remove_mlx_metadata(self) -> None:
        for folder in self.folder.glob("mlx-*.dist-info"):
            shutil.rmtree(folder)

    def run(self, platform: str) -> subprocess.CompletedProcess:
        # -S and -I leave the folder as the only place that packages can come from.
        program = (
            f"import sys; sys.path.insert(0, {str(self.folder)!r}); sys.platform = {platform!r}; "
            "import mlx_tensorops"
        )
        command = [sys.executable, "-S", "-I", "-c", program]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def import_error(self, platform: str = "linux") -> str:
        """Import, and return the message of the one ImportError that this must raise."""
        result = self.run(platform)
        assert result.returncode == 1, result.stdout + result.stderr
        assert result.stderr.count("Traceback") == 1, result.stderr
        error, _, message = result.stderr.splitlines()[-1].partition(": ")
        assert error == "ImportError", result.stderr
        assert "undefined symbol" not in result.stderr
        return message


@pytest.fixture
def environment(tmp_path):
    return Environment(tmp_path)


def test_a_working_environment_imports(environment):
    result = environment.run("linux")
    assert result.returncode == 0, result.stderr


def test_the_package_checks_before_anything_else(environment):
    shutil.copy(PACKAGE / "__init__.py", environment.folder / "mlx_tensorops")
    shutil.rmtree(environment.folder / "mlx")
    environment.remove_mlx_metadata()
    assert f"expected mlx {VERSION}, found no mlx" in environment.import_error()


def test_mlx_not_installed(environment):
    shutil.rmtree(environment.folder / "mlx")
    environment.remove_mlx_metadata()
    message = environment.import_error()
    assert f"expected mlx {VERSION}, found no mlx" in message
    assert "pip install 'mlx-tensorops[cpu]' (or 'mlx-tensorops[cuda13]')" in message


def test_another_mlx(environment):
    environment.write("mlx/core.py", "__version__ = '0.31.1'")
    message = environment.import_error()
    assert f"expected mlx {VERSION}, found mlx 0.31.1" in message
    assert "core.py" in message


def test_another_mlx_that_does_not_load(environment):
    environment.write("mlx/core.py", "raise ImportError('libmlx.so: cannot open')")
    environment.install_mlx_metadata("0.31.1")
    assert f"expected mlx {VERSION}, found mlx 0.31.1" in environment.import_error()


def test_mlx_for_another_python(environment):
    (environment.folder / "mlx" / "core.py").unlink()
    environment.write("mlx/core/__init__.pyi", "")
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    assert f"expected mlx {VERSION} compiled for {python}, found none" in environment.import_error()


def test_mlx_without_a_backend(environment):
    (environment.folder / "mlx" / "core.py").unlink()
    shutil.copy(mx.__file__, environment.folder / "mlx")
    message = environment.import_error(sys.platform)
    assert f"expected mlx {VERSION} with a backend, found it without one (no libmlx)" in message
    if sys.platform == "linux":
        assert "pip install 'mlx-tensorops[cpu]' (or 'mlx-tensorops[cuda13]')" in message


def test_the_remedy_on_a_mac_is_another(environment):
    environment.write("mlx/core.py", "raise ImportError('Library not loaded: @rpath/libmlx.dylib')")
    message = environment.import_error("darwin")
    assert "(no libmlx)" in message
    assert f"pip install --force-reinstall 'mlx=={VERSION}'" in message


def test_mlx_that_does_not_load_for_another_reason(environment):
    environment.write("mlx/core.py", "raise ImportError('libcudnn.so.9: cannot open')")
    assert "mlx.core does not load: libcudnn.so.9: cannot open" in environment.import_error()


def test_another_nanobind(environment):
    environment.write("mlx/core.py", WORKING_CORE.replace(KEY, OTHER_KEY))
    environment.write("mlx_tensorops/_ext.py", REFUSING_EXTENSION)
    message = environment.import_error()
    assert f"expected mlx.core to have the nanobind ABI {KEY}, found {OTHER_KEY}" in message


def test_another_nanobind_whose_extension_does_not_load(environment):
    environment.write("mlx/core.py", WORKING_CORE.replace(KEY, OTHER_KEY))
    environment.write("mlx_tensorops/_ext.py", "raise ImportError('std::bad_cast')")
    message = environment.import_error()
    assert f"expected mlx.core to have the nanobind ABI {KEY}, found {OTHER_KEY}" in message


@pytest.mark.parametrize("extension", [REFUSING_EXTENSION, "smoke = lambda value: False"])
def test_types_are_not_shared_though_the_key_is_right(environment, extension):
    environment.write("mlx_tensorops/_ext.py", extension)
    message = environment.import_error()
    assert f"nanobind ABI {KEY}, found that key, but not its types" in message


@pytest.mark.parametrize(
    "text", ["_ext.so: undefined symbol: _ZN3mlx", "Symbol not found: _ZN3mlx"]
)
def test_an_extension_with_missing_symbols(environment, text):
    environment.write("mlx_tensorops/_ext.py", f"raise ImportError({text!r})")
    message = environment.import_error()
    assert f"expected the libmlx of mlx {VERSION}, found that a function is missing" in message
    assert "_ZN3mlx" not in message


def test_the_real_extension_beside_an_mlx_without_libmlx(environment):
    (environment.folder / "mlx_tensorops" / "_ext.py").unlink()
    (built,) = PACKAGE.glob(f"_ext{EXTENSION_SUFFIXES[0]}")
    shutil.copy(built, environment.folder / "mlx_tensorops")
    message = environment.import_error(sys.platform)
    assert f"expected the libmlx of mlx {VERSION}, found" in message
    assert "libmlx" in message.split("found", 1)[1]


def test_no_extension(environment):
    (environment.folder / "mlx_tensorops" / "_ext.py").unlink()
    message = environment.import_error()
    assert f"expected _ext{EXTENSION_SUFFIXES[0]}" in message
    assert "found none" in message
    assert "pip install ." in message


def test_an_extension_for_another_python(environment):
    (environment.folder / "mlx_tensorops" / "_ext.py").unlink()
    environment.write("mlx_tensorops/_ext.cpython-27-other.so", "")
    assert "found _ext.cpython-27-other.so" in environment.import_error()


def test_no_build_info(environment):
    (environment.folder / "mlx_tensorops" / "_build_info.py").unlink()
    assert "_build_info.py" in environment.import_error()
