"""Each barrier of some of Apple's kernels, taken away in turn, is missed by the trace build."""

import re

import apple_kernels as ak
import pytest
from apple_launches import CASES

from mlx_tensorops.testing import emulator

DELETED = 60000  # index of a function constant: the line of the barrier to leave out
BARRIER = re.compile(r"(?:metal::)?threadgroup_barrier\(mem_flags::mem_threadgroup\);")
KERNELS = "mlx/backend/metal/kernels"


@pytest.fixture(scope="module")
def overlay(tmp_path_factory):
    """A folder with headers in which each barrier can be left out."""
    folder = tmp_path_factory.mktemp("overlay")
    for header in {case.header for case in CASES}:
        original = ak.include_folder() / KERNELS / header
        lines = original.read_text().split("\n")
        for i, line in enumerate(lines):
            guarded = rf"{{ if (deleted_barrier != {i + 1}) \g<0> }}"
            lines[i] = BARRIER.sub(guarded, line)
        changed = folder / KERNELS / header
        changed.parent.mkdir(parents=True, exist_ok=True)
        changed.write_text("\n".join(lines))
    return folder


def barrier_lines(header):
    text = (ak.include_folder() / KERNELS / header).read_text()
    return [i + 1 for i, line in enumerate(text.split("\n")) if BARRIER.search(line)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_deleted_barrier_is_missed(overlay, case):
    text = f"constant int deleted_barrier [[function_constant({DELETED})]];\n"
    text += case.source()
    library = emulator.compile(
        text,
        include_dirs=[overlay, ak.include_folder()],
        instantiations={"kernel": case.instance},
        trace=True,
    )

    whole = case.run(library, {DELETED: 0})
    assert not whole.findings
    passed, missed = [], []
    for line in barrier_lines(case.header):
        mutant = case.run(library, {DELETED: line})
        barriers = "threadgroup_barriers"
        if mutant.counters[barriers] < whole.counters[barriers]:
            passed.append(line)
            if "threadgroup_race" in {finding.kind for finding in mutant.findings}:
                missed.append(line)
    assert len(passed) == case.n_barriers, passed
    assert set(passed) - set(missed) == set(case.redundant)
