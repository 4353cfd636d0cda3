"""The page about Apple's kernels names every kernel of the wheel, and tests that exist."""

import re
from pathlib import Path

import apple_kernels as ak

PAGE = Path(__file__).parents[2] / "csrc" / "emulator" / "APPLE_KERNELS.md"
KERNEL = re.compile(r"\[\[\s*kernel[^\]]*\]\]\s*(?:void\s+)(\w+)\s*\(")


def kernels_of_the_wheel():
    folder = ak.include_folder() / "mlx/backend/metal/kernels"
    for path in folder.rglob("*.h"):
        text = re.sub(r"//[^\n]*", "", path.read_text())
        for match in KERNEL.finditer(text):
            yield str(path.relative_to(folder)), match[1]


def rows():
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    for line in lines[1:]:
        header, names, judge = (cell.strip() for cell in line.strip("|").split("|"))
        yield header, names.split(), judge


def test_every_kernel_has_a_row():
    listed = [(header, name) for header, names, _ in rows() for name in names]
    assert sorted(listed) == sorted(kernels_of_the_wheel())


def test_judges_exist_and_take_the_header():
    for header, _, judge in rows():
        (name,) = re.findall(r"test_apple_\w+\.py", judge)
        text = (Path(__file__).parent / name).read_text()
        helpers = (Path(__file__).parents[1] / "apple_nax.py").read_text()
        word = Path(header).stem.removeprefix("steel_").removesuffix("_nax").split("_")[-1]
        assert word in text + helpers, (header, name)


def test_remarks_exist():
    text = PAGE.read_text()
    for _, _, judge in rows():
        for number in re.findall(r"\((\d)\)", judge):
            assert f"\n{number}. " in text
