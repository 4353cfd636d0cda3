"""``selftest``: compare the Metal kernels of this machine with the CPU's, and print verdicts."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Annotated, Any

import mlx.core as mx
import typer
from rich.console import Console
from rich.table import Table

from mlx_tensorops import _ext
from mlx_tensorops.cli.display import Display
from mlx_tensorops.formats import formats
from mlx_tensorops.metal_source import example
from mlx_tensorops.verification import KernelWarning, verdicts

_ATTENTIONS = (
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_vjp",
    "quantized_scaled_dot_product_attention",
)
_OPS = ("quantize", "dequantize", "quantized_matmul", *_ATTENTIONS)
_DTYPES = (mx.float32, mx.float16, mx.bfloat16)
# Of the few-row kernels each, and of the many-row kernels those with tails and those without.
_ROWS = (1, 2, 4, 8, 16, 32, 64, 65, 70, 96)
# Of attention: of many queries and of few, the widths of heads that have kernels of their own, and
# fewer keys than a tile has; then every option.
_ATTENTION = (
    *({"head_dim": d} for d in (32, 64, 96, 128, 192, 256, 512)),
    {"keys": 20},
    *({"queries": n, "head_dim": d} for n in (1, 8) for d in (64, 128, 256)),
)
# Of its backward pass: owners of rows that work apart and together, and short walks.
_ATTENTION_VJP = (*({"head_dim": d} for d in (64, 128, 256)), {"queries": 20, "keys": 20})
_HAVING = ("mask", "sinks", "softcap", "alibi", "segment_ids", "cu_seqlens", "block_mask")


def selftest(
    op: Annotated[list[str] | None, typer.Option(help="An op, may be repeated.")] = None,
    bits: Annotated[list[int] | None, typer.Option(help="Bits of a code, may be repeated.")] = None,
    group_size: Annotated[
        list[int] | None, typer.Option(help="Values that share a scale, may be repeated.")
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="A mode beside affine, may be repeated; or all of them: all."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Do not use what was found out before.")
    ] = False,
) -> None:
    """Compare Metal kernels with CPU kernels, bit by bit, and print a verdict on each.

    Those of mode affine with 4 and 8 bits and groups of 64, unless others are asked for. Exit code
    1: one is wrong.
    """
    backend, unfit = _ext.place(None)
    if backend != "metal":
        raise RuntimeError(f"MLX's default device runs no Metal kernels: {mx.default_device()}")
    if op and (unknown := set(op) - set(_OPS)):
        raise ValueError(
            f"[selftest] op must be one of {', '.join(_OPS)}, got {', '.join(sorted(unknown))}."
        )
    if unfit:
        raise RuntimeError(f"no Metal kernel of this package runs here: {unfit}")
    cases = list(_cases(op or _OPS, bits or (4, 8), group_size or (64,)))
    modes = [name for name in formats() if name != "affine"] if mode == ["all"] else mode or []
    cases += _cases_of_modes(op or _OPS, modes)
    display = Display()
    with _own_verdicts(fresh), warnings.catch_warnings():
        warnings.simplefilter("ignore", KernelWarning)
        with display.stage(f"{len(cases)} cases") as update:
            for i, (name, options) in enumerate(cases):
                _judge(name, options)
                update(i + 1, len(cases))
    if not _print_verdicts():
        raise typer.Exit(1)


def _cases(ops: Any, all_bits: Any, group_sizes: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    packing = [op for op in ops if op not in _ATTENTIONS]
    for op, bits, group_size, dtype in product(packing, all_bits, group_sizes, _DTYPES):
        options = {"bits": bits, "group_size": group_size, "dtype": dtype}
        if op != "quantized_matmul":
            yield op, options
            continue
        for transpose, rows in product((True, False), _ROWS):
            yield op, options | {"transpose": transpose, "rows": rows}
    if "scaled_dot_product_attention" in ops:
        for sizes, dtype in product(_ATTENTION, _DTYPES):
            yield "scaled_dot_product_attention", {**sizes, "dtype": dtype}
        for name in _HAVING:
            yield "scaled_dot_product_attention", {"having": (name,)}
    if "scaled_dot_product_attention_vjp" in ops:
        for sizes, dtype in product(_ATTENTION_VJP, _DTYPES):
            yield "scaled_dot_product_attention_vjp", {**sizes, "dtype": dtype}
        for name in _HAVING:
            yield "scaled_dot_product_attention_vjp", {"having": (name,)}
    if "quantized_scaled_dot_product_attention" not in ops:
        return
    for queries, head_dim in product((1, 4, 40), (64, 128)):
        sizes = {"queries": queries, "head_dim": head_dim}
        for bits, group_size, dtype in product(all_bits, group_sizes, _DTYPES):
            options = {**sizes, "bits": bits, "group_size": group_size, "dtype": dtype}
            yield "quantized_scaled_dot_product_attention", options


def _cases_of_modes(ops: Any, modes: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of other modes: few rows and many, both orders of the matrix."""
    for mode, dtype in product(modes, _DTYPES):
        options = {"mode": mode, "dtype": dtype}
        if "dequantize" in ops:
            yield "dequantize", options
        if "quantized_matmul" in ops:
            for transpose, rows in product((True, False), (1, 16, 64)):
                yield "quantized_matmul", options | {"transpose": transpose, "rows": rows}


def _judge(op: str, options: dict[str, Any]) -> None:
    try:
        example(op, None, **options)
    except ValueError as error:
        # A wrong kernel: the example insists on it. It is in verdicts().
        if "force_fused" not in str(error):
            raise


@contextmanager
def _own_verdicts(fresh: bool) -> Iterator[None]:
    """Let verdicts be kept where there are none yet."""
    name = "MLX_TENSOROPS_VERDICTS"
    before = os.environ.get(name)
    with tempfile.TemporaryDirectory() as folder:
        if fresh:
            os.environ[name] = folder
        try:
            yield
        finally:
            if fresh and before is None:
                del os.environ[name]
            elif fresh:
                os.environ[name] = str(before)


def _print_verdicts() -> bool:
    """Print the table; whether all are right."""
    found = verdicts()
    table = Table("kernel", "verdict")
    for verdict in found:
        known = " (known before)" if verdict.remembered else ""
        table.add_row(
            verdict.kernel.removeprefix("mlx_tensorops_"), (verdict.fault or "right") + known
        )
    Console(markup=False, highlight=False).print(table)
    n_wrong = sum(bool(verdict.fault) for verdict in found)
    typer.echo(f"{len(found) - n_wrong} kernels are right, {n_wrong} are not used")
    return n_wrong == 0
