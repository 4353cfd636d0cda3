"""Count bytes of our Metal kernels for attention of few queries, dense and packed, and of MLX's.

Both run in the emulator, on the same operands. Bytes are what lanes ask for, as if there were no
cache. Nothing here is a time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).parents[1]
# Launches of MLX's kernels are the test suite's. The installed package comes first.
sys.path.append(str(ROOT / "tests"))

from metal_costs import Cost  # noqa: E402
from metal_decode_costs import (  # noqa: E402
    Decode,
    cache_bytes,
    mlx_one_pass,
    mlx_two_passes,
    ours,
)

OPERANDS = ("q", "k", "v", "out", "parts")
COLUMNS = ("case", "kernel", *OPERANDS, "all", "/ cache", "/ ours")
INTRODUCTION = """# Counted bytes of attention of few queries in Metal

Written by `{command}` with mlx {mlx}; counted in the emulator, not
measured on a Mac. Below each kernel of ours are MLX's for the case, of one pass and of two; for
packed keys and values it has none.

Columns: megabytes that lanes ask for, as if there were no cache, of each operand, of what splits
write and the merge reads again (parts), and of all; that in relation to the keys and values that
any query sees, read once; that in relation to our kernel's. The packed formats are bits (group
size) of the keys, and of the values.
"""


def cases() -> Iterator[Decode]:
    """Heads as models have them, then other widths, windows and packed caches."""
    for heads, kv_heads in ((4, 4), (8, 2), (8, 1), (32, 1)):
        yield Decode(4096, heads, kv_heads)
    yield Decode(4096, n_q=4)
    yield Decode(4096, d=64, d_v=64)
    yield Decode(2048, d=256, d_v=256)
    yield Decode(2048, d=192, d_v=128)
    yield Decode(4096, kind="float")
    yield Decode(4096, window=1024)
    for formats in (((64, 8), (64, 8)), ((64, 4), (64, 4)), ((32, 8), (64, 2)), ((64, 6), (64, 3))):
        yield Decode(4096, packed=formats)


def row(case: str, cost: Cost, own: Cost, least: int) -> str:
    """One line of the table."""
    megabytes = [f"{cost.n_bytes[operand] / 1e6:.3f}" for operand in OPERANDS]
    relations = [f"{cost.total / least:.3f}", f"{cost.total / own.total:.2f}"]
    cells = [case, f"`{cost.kernel}`", *megabytes, f"{cost.total / 1e6:.3f}", *relations]
    return f"| {' | '.join(cells)} |"


def table() -> Iterator[str]:
    """The lines of the table: ours first, MLX's below it."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    for case in cases():
        own, least = ours(case), cache_bytes(case)
        yield row(str(case), own, own, least)
        for rival in () if case.packed or case.window else (mlx_one_pass, mlx_two_passes):
            yield row("", rival(case), own, least)


def main(
    out: Annotated[Path | None, typer.Option(help="Write the table here (Markdown).")] = None,
) -> None:
    """Count, and print or write a table."""
    command = "python benchmarks/metal_decode_counters.py"
    lines = [INTRODUCTION.format(command=command, mlx=version("mlx")), *table()]
    text = "\n".join(lines) + "\n"
    if out:
        out.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    typer.run(main)
