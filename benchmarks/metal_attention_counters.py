"""Count bytes and operations of our Metal kernels for attention's forward pass, and of MLX's.

Both run in the emulator, on the same operands. Bytes are what lanes ask for, as if there were no
cache; an operand of a matrix operation counts once an operation. Nothing here is a time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import numpy as np
import typer

ROOT = Path(__file__).parents[1]
# Launches of MLX's kernels are the test suite's. The installed package comes first.
sys.path.append(str(ROOT / "tests"))

from metal_attention_costs import (  # noqa: E402
    OURS,
    AttentionShape,
    mlx_tiles,
    needed_flops,
    ours,
    run,
    seen_by,
)
from metal_costs import Cost  # noqa: E402

COLUMNS = ("case", "kernel", *OURS, "all", "/ ours", "MFLOP", "needed", "/ needed")
INTRODUCTION = """# Counted costs of attention's forward pass in Metal

Written by `{command}` with mlx {mlx}; counted in the
emulator, not measured on a Mac. Below each kernel of ours is MLX's for the matrix units of M5.

Columns: megabytes that lanes ask for, as if there were no cache, of each operand and of all; that
in relation to our kernel's; MFLOP of matrix operations; MFLOP of the pairs of a query and a key
that see each other; the first in relation to the second.
"""
OPTIONS = """
## What options leave out

One head of {d} dimensions, half; MLX has no kernel for these. 8192 queries and keys under the
window; documents of {lengths} rows,
by their lengths and by sorted ids; blocks of 64 x 64, of which half are masked.

| case | MFLOP | needed | / needed |
|---|---|---|---|
"""
LENGTHS = (300, 50, 700, 130, 500, 368)
D = 64


def shapes() -> Iterator[AttentionShape]:
    """Heads of 64, 128 and 256, causal and not, with tails and without, of every type."""
    for d in (128, 64, 256):
        for causal in (True, False):
            yield AttentionShape(512, 512, d=d, causal=causal)
            yield AttentionShape(257, 257, 2, 1, d=d, causal=causal)
    yield AttentionShape(128, 1024)
    for kind in ("float", "bfloat16_t"):
        yield AttentionShape(256, 256, kind=kind, causal=True)


def name(shape: AttentionShape) -> str:
    """The case in a few words."""
    kind = shape.kind.removesuffix("_t")
    causal = ", causal" if shape.causal else ""
    heads = f"{shape.heads} heads of {shape.kv_heads}, " if shape.heads > 1 else ""
    return f"{kind} {shape.d}, {heads}{shape.n_q} x {shape.n_k}{causal}"


def row(case: str, cost: Cost, own: Cost, needed: int) -> str:
    """One line of the table."""
    megabytes = [f"{cost.n_bytes[operand] / 1e6:.3f}" for operand in OURS]
    cells = [case, f"`{cost.kernel}`", *megabytes, f"{cost.total / 1e6:.3f}"]
    cells += [f"{cost.total / own.total:.2f}", f"{cost.matrix_flops / 1e6:.1f}"]
    cells += [f"{needed / 1e6:.1f}", f"{cost.matrix_flops / needed:.2f}"]
    return f"| {' | '.join(cells)} |"


def table() -> Iterator[str]:
    """The lines of the table: ours first, MLX's below it."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    for shape in shapes():
        own, needed = ours(shape), needed_flops(shape, seen_by(shape))
        yield row(name(shape), own, own, needed)
        yield row("", mlx_tiles(shape), own, needed)


def options() -> Iterator[tuple[str, AttentionShape, dict[str, Any], np.ndarray[Any, Any]]]:
    """Calls, and the pairs that see each other."""
    long = AttentionShape(8192, 8192, d=D)
    yield "window=1024", long, {"window": 1024}, seen_by(long, window=1024)
    packed = AttentionShape(sum(LENGTHS), sum(LENGTHS), d=D, causal=True)
    seen = seen_by(packed, lengths=LENGTHS)
    ends = mx.array(np.concatenate([[0], np.cumsum(LENGTHS)]).astype(np.int32))
    yield "cu_seqlens, causal", packed, {"cu_seqlens": ends}, seen
    ids = mx.array(np.repeat(np.arange(len(LENGTHS)), LENGTHS).astype(np.int32))[None]
    yield "segment_ids, causal", packed, {"segment_ids": ids}, seen
    square = AttentionShape(1024, 1024, d=D)
    blocks = np.random.default_rng(0).permuted(np.arange(256) % 2 == 0).reshape(16, 16)
    seen = np.kron(blocks, np.ones((64, 64), bool))
    masked = {"block_mask": mx.array(blocks), "block_size": (64, 64)}
    yield "block_mask", square, masked, seen


def option_rows() -> Iterator[str]:
    """The lines of the second table."""
    for case, shape, given, seen in options():
        issued = run(shape, **given).counters["matmul_flops"]
        needed = needed_flops(shape, seen)
        yield f"| {case} | {issued / 1e6:.1f} | {needed / 1e6:.1f} | {issued / needed:.2f} |"


def main(
    out: Annotated[Path | None, typer.Option(help="Write the tables here (Markdown).")] = None,
) -> None:
    """Count, and print or write the tables."""
    command = "python benchmarks/metal_attention_counters.py"
    lines = [INTRODUCTION.format(command=command, mlx=version("mlx")), *table()]
    lengths = ", ".join(map(str, LENGTHS[:-1])) + f" and {LENGTHS[-1]}"
    lines += [OPTIONS.format(d=D, lengths=lengths).removesuffix("\n"), *option_rows()]
    text = "\n".join(lines) + "\n"
    if out:
        out.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    typer.run(main)
