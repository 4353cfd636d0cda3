"""Count bytes and operations of our Metal kernels and of MLX's.

Both run in the emulator, on the same operands. Bytes are what lanes ask for, as if there were no
cache; an operand of a matrix operation counts once an operation. Nothing here is a time.
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

from metal_costs import OPERANDS, Cost, bound, ours, rivals  # noqa: E402
from metal_quantized_matmul import Operands, Product  # noqa: E402

SIZE = 1024
COLUMNS = ("case", "kernel", *OPERANDS, "all", "/ bound", "/ ours", "MFLOP", "needed")
INTRODUCTION = """# Counted costs of quantized_matmul in Metal

Written by `{command}` with mlx {mlx}; counted in the emulator, not
measured on a Mac. n = k = {size}. t: the matrix is [n, k], n: [k, n]. Below each kernel of ours are
those that MLX would take for the case, depending on the GPU.

Columns: megabytes that lanes ask for, as if there were no cache, of each operand and of all; that
in relation to weights once a row of tiles, x once a column of tiles and y once, a tile being what
those simdgroups have of y that share what they load; that in relation to our kernel's; MFLOP of
matrix operations, without which few rows are multiplied; MFLOP that the product needs.
"""


def products() -> Iterator[Product]:
    """One row to 32, then many rows: kinds, bits, and matrices that are not transposed."""
    half = ("half",) * 3
    for transpose in (True, False):
        for m in (1, 2, 4, 8, 16, 32):
            yield Product(m, SIZE, SIZE, 4, 64, half, transpose)
        for bits in (4, 8, 3, 1):
            yield Product(128, SIZE, SIZE, bits, 64, half, transpose)
        for m in (33, 64, 96):
            yield Product(m, SIZE, SIZE, 4, 64, half, transpose)
        for kind in ("float", "bfloat16_t"):
            yield Product(128, SIZE, SIZE, 4, 64, (kind,) * 3, transpose)


def name(product: Product) -> str:
    """The case in a few words."""
    kind = product.kinds[0].removesuffix("_t")
    orientation = "t" if product.transpose else "n"
    return f"{orientation} {kind} {product.bits} bits, {product.m} rows"


def row(case: str, cost: Cost, own: Cost, least: int | None, needed: int) -> str:
    """One line of the table."""
    megabytes = [f"{cost.n_bytes[operand] / 1e6:.3f}" for operand in OPERANDS]
    cells = [case, f"`{cost.kernel}`", *megabytes, f"{cost.total / 1e6:.3f}"]
    cells += [f"{cost.total / least:.3f}" if least else "", f"{cost.total / own.total:.2f}"]
    cells += [f"{cost.matrix_flops / 1e6:.0f}", f"{needed / 1e6:.0f}"]
    return f"| {' | '.join(cells)} |"


def table() -> Iterator[str]:
    """The lines of the table: ours first, MLX's below it."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    for product in products():
        operands = Operands(product)
        own = ours(operands)
        needed = 2 * product.m * product.n * product.k
        yield row(name(product), own, own, bound(operands, own.kernel), needed)
        for rival in rivals(product):
            yield row("", rival(operands), own, None, needed)


def main(
    out: Annotated[Path | None, typer.Option(help="Write the table here (Markdown).")] = None,
) -> None:
    """Count, and print or write a table."""
    command = "python benchmarks/metal_counters.py"
    lines = [INTRODUCTION.format(command=command, mlx=version("mlx"), size=SIZE), *table()]
    text = "\n".join(lines) + "\n"
    if out:
        out.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    typer.run(main)
