"""``generate``: text from a model folder, through our ops."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import mlx.core as mx
import typer

from mlx_tensorops.cli.compiler import make_compile_safe
from mlx_tensorops.cli.display import Display
from mlx_tensorops.cli.generation import Generation, Speed, encode_prompt, load
from mlx_tensorops.patch import PatchWarning, Report, patched, report, reset_report


def generate(
    model: Annotated[
        Path,
        typer.Option(metavar="PATH", help="An mlx-lm model folder or a GGUF file.", exists=True),
    ],
    prompt: Annotated[str, typer.Option(help="The prompt, or - to read it from stdin.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate at most.")] = 100,
    temp: Annotated[float, typer.Option(min=0.0, help="Sampling temperature, 0: greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the sampling.")] = 0,
    chat: Annotated[
        bool, typer.Option("--chat/--raw", help="Use the model's chat template, or the bare text.")
    ] = True,
    no_patch: Annotated[
        bool, typer.Option("--no-patch", help="Run MLX's own ops, to compare.")
    ] = False,
) -> None:
    """Generate text with an mlx-lm model folder, or a GGUF file as it is, through our ops.

    The text goes to stdout as it comes; progress, speed and what ran where go to stderr.
    """
    # What a warning would say is in the summary.
    warnings.simplefilter("ignore", PatchWarning)
    display = Display()
    with display.stage(f"loading {model}"):
        if notice := make_compile_safe():
            display.note(notice)
        network, tokenizer = load(model)
    text = sys.stdin.read() if prompt == "-" else prompt
    tokens = encode_prompt(tokenizer, text, chat=chat)
    mx.random.seed(seed)
    reset_report()
    with nullcontext() if no_patch else patched(network):
        with display.stage(f"reading {len(tokens)} prompt tokens") as update:
            run = Generation(
                network,
                tokenizer,
                tokens,
                max_tokens=max_tokens,
                temperature=temp,
                on_progress=update,
            )
            run.prefill()
        for piece in run.texts():
            typer.echo(piece, nl=False)
        typer.echo()
    display.note(speed_line(run.speed()))
    display.note("MLX's own ops (--no-patch)" if no_patch else "\n".join(patch_lines(report())))


def speed_line(speed: Speed) -> str:
    """Say what a generation took."""
    return (
        f"prompt: {speed.n_prompt} tokens, {speed.prefill_tps:.1f} tok/s; "
        f"generation: {speed.n_generated} tokens, {speed.decode_tps:.1f} tok/s; "
        f"peak memory: {speed.peak_bytes / 1e6:.1f} MB"
    )


def patch_lines(found: Report) -> Iterator[str]:
    """Say what ran where: one line, and one for each reason why something ran elsewhere."""
    fallbacks: Counter[str] = Counter()
    for row in found.modules:
        fallbacks.update(row.fallbacks)
    yield (
        f"patched: {len(found.modules)} modules, {found.total_fused} calls through our ops, "
        f"{fallbacks.total()} fallbacks to MLX's"
    )
    for reason, count in fallbacks.most_common():
        yield f"  {count} fallbacks: {reason}"
    by_choice: Counter[str] = Counter()
    for row in found.modules:
        by_choice.update(row.by_choice)
    for reason, count in by_choice.most_common():
        yield f"  {count} calls left to MLX's ops: {reason}"
    for reason, count in Counter(row.reason for row in found.left_alone).most_common():
        yield f"  {count} modules left alone: {reason}"
