"""The application: its commands, and how their errors reach the user."""

from __future__ import annotations

import functools
from collections.abc import Callable

import typer

from mlx_tensorops.cli.convert import convert
from mlx_tensorops.cli.generate import generate
from mlx_tensorops.cli.info import info
from mlx_tensorops.cli.selftest import selftest

app = typer.Typer(
    help="Quantized ops for MLX: look at the installation, test it, convert and run models.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _with_short_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Turn what a user can cause into one line on stderr and exit code 1."""

    @functools.wraps(command)
    def run(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **kwargs)
        except BrokenPipeError:
            # The reader of our output is gone, as in `... | head`: not an error of ours to explain.
            raise
        except (ValueError, OSError, RuntimeError) as error:
            message = " ".join(str(error).split()) or type(error).__name__
            typer.echo(f"error: {message}", err=True)
            raise typer.Exit(1) from None

    return run


for _command in (info, selftest, convert, generate):
    app.command()(_with_short_errors(_command))
