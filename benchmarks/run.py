"""Run benchmarks: `python benchmarks/run.py quantized_matmul --match transpose`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

# Behind the installed package: the source tree has no compiled part.
sys.path.append(str(Path(__file__).parent.parent))

from benchmarks import harness  # noqa: E402

OPS = sorted(path.stem.removeprefix("bench_") for path in (harness.ROOT / "ops").glob("bench_*.py"))


def main(
    ops: Annotated[list[str] | None, typer.Argument(help=f"Any of: {', '.join(OPS)}.")] = None,
    match: Annotated[str, typer.Option(help="Only cases whose text contains this.")] = "",
    turns: Annotated[int, typer.Option(help="Turns of every contestant, at least.")] = 15,
    out: Annotated[
        Path | None, typer.Option(help="Append rows to this file of JSON lines.")
    ] = None,
) -> None:
    """Measure our ops beside their rivals and print, and keep, a row for each."""
    unknown = [op for op in ops or [] if op not in OPS]
    if unknown:
        raise typer.BadParameter(
            f"no benchmark of {', '.join(unknown)}; there are {', '.join(OPS)}"
        )
    console = Console()
    for op in ops or OPS:
        module = importlib.import_module(f"benchmarks.ops.bench_{op}")
        table = Table("case", "contestant", "ms", "GB/s", "GFLOP/s", "tok/s", "ratio", title=op)
        for spec in module.benchmarks():
            case = " ".join(f"{key}={value}" for key, value in spec.case.items())
            if match not in case:
                continue
            rows = harness.measure(spec.make(), n_turns=turns)
            for row in rows:
                table.add_row(
                    case if row is rows[0] else "",
                    row.contestant,
                    f"{row.median_ms:.3f}",
                    f"{row.gbps:.1f}" if row.gbps else "",
                    f"{row.gflops:.1f}" if row.gflops else "",
                    f"{row.tokens_per_s:.1f}" if row.tokens_per_s else "",
                    f"{row.ratio:.2f}",
                )
            if out:
                harness.write(rows, out)
        console.print(table)


if __name__ == "__main__":
    typer.run(main)
