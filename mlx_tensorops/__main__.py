"""Run the command line."""

from mlx_tensorops.cli import app

app(prog_name="python -m mlx_tensorops")
