"""Run a suite that is not ours twice, with plain MLX and on our ops, and compare."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from safe_compile import failure as compile_failure

ROUTED = ("--mto-patch", "--mto-drop-in")


@dataclass(frozen=True)
class Run:
    """Outcome by test, launches of our kernels by op, and what was printed."""

    outcomes: dict[str, str]
    kernels: dict[str, int]
    output: str

    @property
    def passed(self) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome == "passed"}


def run(
    path: Path, work: Path, is_routed: bool, env: dict[str, str] | None = None, *options: str
) -> Run:
    """Run one test file; ``work`` is a folder for the report."""
    report = work / f"{path.stem}_{'routed' if is_routed else 'plain'}.xml"
    command = [sys.executable, "-m", "pytest", path.name, "-p", "no:cacheprovider", "-q"]
    command += ["-c", os.devnull, "--rootdir", str(path.parent), f"--junitxml={report}"]
    command += ["-p", "mlx_tensorops.testing.pytest_plugin", *(ROUTED if is_routed else ())]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | (env or {})
    if compile_failure():
        environment["MLX_DISABLE_COMPILE"] = "1"
    process = subprocess.run(
        [*command, *options],
        cwd=path.parent,
        env=environment,
        capture_output=True,
        text=True,
    )
    output = process.stdout + process.stderr
    assert report.exists(), output
    kernels = re.findall(r"^  (\w+) \[\w+\] fused: (\d+)$", output, re.MULTILINE)
    return Run(_read(report), {op: int(count) for op, count in kernels}, output)


def compare(path: Path, work: Path, env: dict[str, str] | None = None, *options: str) -> Run:
    """Assert that what passes with plain MLX passes on our ops; return the run on ours."""
    plain = run(path, work, False, env, *options)
    routed = run(path, work, True, env, *options)
    broken = plain.passed - routed.passed
    assert not broken, f"pass with MLX only: {sorted(broken)}\n{routed.output}"
    assert not plain.kernels
    return routed


def _read(report: Path) -> dict[str, str]:
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        name = f"{case.get('classname')}::{case.get('name')}"
        # A test whose teardown fails is listed twice.
        if outcomes.get(name, "passed") == "passed":
            outcomes[name] = kinds.pop() if kinds else "passed"
    return outcomes
