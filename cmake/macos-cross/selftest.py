"""Plant names that no library has: the link, and the check of its result, must refuse them."""

from __future__ import annotations

from pathlib import Path

import macho
from project import BuildError, Project
from report import Expected, problems

PLANTED_SOURCE = Path(__file__).resolve().parent / "planted.cpp"
PLANTED = (
    "__ZN3mlx4core5metal16is_nax_availableEv",
    "__ZNSt3__113__hash_memoryEPKvm",
    "_MTLPlantedMissing",
    "_PyPlanted_Missing",
    "_memfd_create",
)


def run(project: Project, expected: Expected) -> list[str]:
    """Return a sentence for each planted name that went unnoticed; leaves a clean build behind."""
    planted = project.compile(PLANTED_SOURCE)
    try:
        missed = _strict_link(project, planted) + _lenient_link(project, planted, expected)
    finally:
        project.configure()
        project.build()
    if not missed:
        print(f"  self-test: {len(PLANTED)} planted names noticed, by the link and by the check")
    return missed


def _strict_link(project: Project, planted: Path) -> list[str]:
    project.configure(link_flags=str(planted))
    try:
        project.build()
    except BuildError as error:
        unnoticed = [name for name in PLANTED if name not in str(error)]
        return [f"self-test: the link did not name {name}" for name in unnoticed]
    return ["self-test: the link accepted names that no library has"]


def _lenient_link(project: Project, planted: Path, expected: Expected) -> list[str]:
    project.configure(link_flags=f"{planted} -Wl,-undefined,dynamic_lookup")
    project.build()
    found = "\n".join(problems(macho.read(project.extension()), expected))
    unnoticed = [name for name in PLANTED if name not in found]
    return [f"self-test: the check did not name {name}" for name in unnoticed]
