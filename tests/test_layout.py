"""The shape of the repository: whole slices, documented arguments, short ASCII files."""

import inspect
import re
from pathlib import Path

import pytest

import mlx_tensorops as mto

ROOT = Path(__file__).parents[1]
SLICE = (
    "csrc/ops/{op}/{op}.h",
    "csrc/ops/{op}/{op}.cpp",
    "mlx_tensorops/ops/{op}.py",
    "mlx_tensorops/reference/{op}.py",
    "tests/ops/test_{op}.py",
)
# An op without kernels is composed of MLX's.
SLICE_OF_KERNELS = ("csrc/ops/{op}/{op}_cpu.cpp", "benchmarks/ops/bench_{op}.py")
FOLDERS = ("csrc", "metal", "mlx_tensorops", "cmake", "tests", "benchmarks", "demo")
SUFFIXES = {".py", ".h", ".cpp", ".metal", ".cu", ".cmake", ".sh", ".toml", ".txt"}
LONGEST_FILE = 400
SECTIONS = ("Args", "Returns", "Raises", "Example")


def stems(pattern: str) -> set[str]:
    return {path.stem for path in ROOT.glob(pattern) if not path.stem.startswith("_")}


OPS = sorted(stems("csrc/ops/*") | stems("mlx_tensorops/ops/*.py"))
FORMATS = sorted(stems("csrc/formats/*.h") & stems("mlx_tensorops/reference/formats/*.py"))
PUBLIC = [name for name in mto.__all__ if callable(getattr(mto, name))]


def sources() -> list[Path]:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    kept = (path for path in files if path.suffix in SUFFIXES and not path.is_symlink())
    return [path for path in kept if "__pycache__" not in path.parts]


@pytest.mark.parametrize("op", OPS)
def test_op_slice_is_whole(op):
    has_kernels = any((ROOT / "csrc/ops" / op).glob("*_kernels.cpp"))
    patterns = (*SLICE, *(SLICE_OF_KERNELS if has_kernels else ()))
    missing = [file for p in patterns if not (ROOT / (file := p.format(op=op))).exists()]
    assert not missing


@pytest.mark.parametrize("op", OPS)
def test_op_is_public(op):
    assert op in mto.__all__
    assert f"({op})" in (ROOT / "CMakeLists.txt").read_text()


def test_formats_are_tested():
    assert FORMATS
    missing = [f for f in FORMATS if not (ROOT / f"tests/formats/test_{f}.py").exists()]
    assert not missing


def test_files_are_short():
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in sources()}
    assert not {name: n for name, n in lengths.items() if n > LONGEST_FILE}


def test_sources_are_ascii():
    assert not [str(p.relative_to(ROOT)) for p in sources() if not p.read_text().isascii()]


def documented_arguments(docstring: str) -> list[str]:
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", docstring, re.DOTALL | re.MULTILINE)
    return (
        re.findall(r"^    (\w+)(?: \([^)]*\))?:", section.group(1), re.MULTILINE) if section else []
    )


@pytest.mark.parametrize("name", PUBLIC)
def test_arguments_are_documented(name):
    function = getattr(mto, name)
    docstring = inspect.getdoc(function)
    assert docstring, f"{name} has no docstring"
    parameters = [p for p in inspect.signature(function).parameters if p != "self"]
    assert documented_arguments(docstring) == parameters
    sections = re.findall(r"^(\w+):$", docstring, re.MULTILINE)
    known = [section for section in sections if section in SECTIONS]
    assert known == sorted(known, key=SECTIONS.index), "sections are out of order"


@pytest.mark.parametrize("name", mto.__all__)
def test_public_names_are_in_the_documents(name):
    documents = [ROOT / "README.md", ROOT / "SUPPORT.md"]
    assert any(re.search(rf"\b{name}\b", path.read_text()) for path in documents)


@pytest.mark.parametrize("op", OPS)
def test_support_table_has_the_op(op):
    assert re.search(rf"\b{op}\b", (ROOT / "SUPPORT.md").read_text())
