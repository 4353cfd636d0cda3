"""The runtime as a piece of C++: it needs no C++ library, and other compilers take it, too."""

import ctypes
import shutil
import subprocess

import emulator_runtime as er
import pytest

WITHOUT_PRAGMAS = ("-Wno-unknown-pragmas", "-Wno-error=pragmas")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("flags", [(), ("-DEMU_TRACE",)], ids=["plain", "trace"])
def test_another_compiler_and_its_headers(tmp_path, flags):
    compiled, library = tmp_path / "runtime.o", tmp_path / "runtime.so"
    source = er.SOURCES / "runtime" / "runtime.cpp"
    command = ["g++", *er.COMPILE, *WITHOUT_PRAGMAS, *flags, "-c", str(source)]
    subprocess.run([*command, "-o", str(compiled)], check=True)
    # gcc, not g++: what is missing would be a part of the C++ library.
    command = ["gcc", "-shared", str(compiled), "-o", str(library), "-Wl,-z,defs", "-lpthread"]
    subprocess.run(command, check=True)
    assert ctypes.CDLL(str(library)).emu_abi_version() == 1
