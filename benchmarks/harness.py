"""One way to measure: check, warm up, rotate inputs, interleave the contestants, keep the median.

A benchmark is data: a case, the work that must be done, and contestants that do it. Contestants
take turns, so that a change of the machine's speed meets all of them, and are handed the number of
the turn, so that they can rotate inputs that are larger than the caches.
"""

from __future__ import annotations

import json
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent


@dataclass(frozen=True)
class Contestant:
    """A name and what it does in one turn; returns when the result is there.

    ``share``: how much of its time counts, where it does more than the others.
    """

    name: str
    run: Callable[[int], Any]
    share: float = 1


@dataclass(frozen=True)
class Benchmark:
    """What is compared. `n_bytes`, `n_flops`, `n_tokens`: the work, whoever does it."""

    op: str
    case: dict[str, Any]
    contestants: list[Contestant]
    n_bytes: float = 0
    n_flops: float = 0
    n_tokens: int = 0
    check: Callable[[], None] = lambda: None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One contestant's result; `ratio` is the first contestant's time over this one's."""

    op: str
    case: dict[str, Any]
    contestant: str
    median_ms: float
    min_ms: float
    max_ms: float
    gbps: float
    gflops: float
    tokens_per_s: float
    ratio: float
    n_turns: int
    facts: dict[str, Any]
    machine: dict[str, Any]
    command: str

    def json(self) -> str:
        """The row as one line."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Case:
    """A benchmark to be made when it is its turn: its inputs are large."""

    case: dict[str, Any]
    make: Callable[[], Benchmark]


def memory_reader(n_bytes: int) -> Contestant:
    """Reading as many bytes, once, on as many threads: the time that memory alone takes."""
    from mlx_tensorops import _ext

    parts = np.array_split(np.ones(n_bytes // 4, np.float32), _ext.num_threads())
    pool = ThreadPoolExecutor(len(parts))
    return Contestant("memory read once", lambda _: list(pool.map(np.max, parts)))


# A rival's threads may spin on for a while after its turn, and would take the next one's cores.
SETTLE_SECONDS = 0.1


def measure(benchmark: Benchmark, n_turns: int = 15, min_seconds: float = 0.5) -> list[Row]:
    """Measure all contestants; more turns while they add up to less than `min_seconds`."""
    benchmark.check()
    times: dict[str, list[float]] = {c.name: [] for c in benchmark.contestants}
    for contestant in benchmark.contestants:
        contestant.run(0)
    start = time.perf_counter()
    turn = 0
    while turn < n_turns or (time.perf_counter() - start < min_seconds and turn < 200):
        turn += 1
        for contestant in benchmark.contestants:
            if len(benchmark.contestants) > 1:
                time.sleep(SETTLE_SECONDS)
            begin = time.perf_counter()
            contestant.run(turn)
            seconds = (time.perf_counter() - begin) * contestant.share
            times[contestant.name].append(seconds)
    return list(_rows(benchmark, times))


def _rows(benchmark: Benchmark, times: dict[str, list[float]]) -> Iterator[Row]:
    medians = {name: statistics.median(values) for name, values in times.items()}
    first = medians[benchmark.contestants[0].name]
    for name, values in times.items():
        median = medians[name]
        yield Row(
            op=benchmark.op,
            case=benchmark.case,
            contestant=name,
            median_ms=median * 1e3,
            min_ms=min(values) * 1e3,
            max_ms=max(values) * 1e3,
            gbps=benchmark.n_bytes / median / 1e9,
            gflops=benchmark.n_flops / median / 1e9,
            tokens_per_s=benchmark.n_tokens / median,
            ratio=median / first,
            n_turns=len(values),
            facts=benchmark.facts,
            machine=machine(),
            command=shlex.join(["python", *sys.argv]),
        )


def machine() -> dict[str, Any]:
    """What must be known to repeat a measurement."""
    from mlx_tensorops import _ext

    return {
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "mlx": metadata.version("mlx"),
        "commit": _commit(),
        "instruction_set": _ext.cpu_isa(),
        "threads": _ext.num_threads(),
        "load": _load(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _load() -> float:
    """The load of the machine before the measurement: above the benchmark's own it is not quiet."""
    import psutil

    return round(psutil.getloadavg()[0], 2)


def write(rows: Iterable[Row], path: Path) -> None:
    """Append rows to a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(row.json() + "\n" for row in rows)
