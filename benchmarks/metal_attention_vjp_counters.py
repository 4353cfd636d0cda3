"""Count matrix operations of our Metal kernels for attention's backward pass and forward pass.

Both run in the emulator, on the same operands. Nothing here is a time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).parents[1]
# Launches are the test suite's. The installed package comes first.
sys.path.append(str(ROOT / "tests"))

from metal_attention_costs import AttentionShape, needed_flops, seen_by  # noqa: E402
from metal_attention_vjp_costs import backward_cost  # noqa: E402

COLUMNS = ("case", "forward", "d_q", "d_k, d_v", "both", "/ forward", "needed", "/ needed")
INTRODUCTION = """# Counted costs of attention's backward pass in Metal

Written by `{command}` with mlx {mlx}; counted in
the emulator, not measured on a Mac. Two kernels recompute the weights, so that they have seven
products to the forward pass's two, and 3.5 times its operations.

Columns: MFLOP of matrix operations of the forward pass, of the kernel of d_q, of that of d_k and
d_v, and of both; that in relation to the forward pass; MFLOP of seven products of the pairs of a
query and a key that see each other; both kernels in relation to that.
"""


def cases() -> Iterator[tuple[AttentionShape, int | None]]:
    """Shapes of the forward pass's table, and windows."""
    for d in (64, 80, 128, 256):
        yield AttentionShape(512, 512, d=d, causal=True), None
    yield AttentionShape(257, 257, 2, 1, causal=True), None
    yield AttentionShape(512, 512), None
    yield AttentionShape(128, 1024), None
    yield AttentionShape(256, 256, kind="float", causal=True), None
    yield AttentionShape(2048, 2048, d=64), 256
    yield AttentionShape(8192, 8192, d=64), 1024


def rows() -> Iterator[str]:
    """The lines of the table."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    for shape, window in cases():
        cost = backward_cost(shape, **({"window": window} if window else {}))
        needed = 3.5 * needed_flops(shape, seen_by(shape, window=window))
        case = f"{shape.kind.removesuffix('_t')} {shape.d}, {shape.n_q} x {shape.n_k}"
        case += ", causal" if shape.causal else ""
        case += f", window {window}" if window else ""
        flops = (cost.forward, cost.by_queries, cost.by_keys, cost.backward)
        cells = [case, *(f"{n / 1e6:.1f}" for n in flops), f"{cost.ratio:.3f}"]
        cells += [f"{needed / 1e6:.1f}", f"{cost.backward / needed:.2f}"]
        yield f"| {' | '.join(cells)} |"


def main(
    out: Annotated[Path | None, typer.Option(help="Write the table here (Markdown).")] = None,
) -> None:
    """Count, and print or write the table."""
    command = "python benchmarks/metal_attention_vjp_counters.py"
    lines = [INTRODUCTION.format(command=command, mlx=version("mlx")), *rows()]
    text = "\n".join(lines) + "\n"
    if out:
        out.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    typer.run(main)
