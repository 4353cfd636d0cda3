"""The command line: ``python -m mlx_tensorops COMMAND``."""

from mlx_tensorops.cli.app import app

__all__ = ["app"]
