import os
import subprocess
import sys

import pytest
from safe_compile import compile_only_where_it_works  # noqa: F401
from tiny_gguf import write_gguf
from typer.testing import CliRunner

from mlx_tensorops.cli import app
from mlx_tensorops.io import convert_gguf


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A random llama of two layers as an mlx-lm folder."""
    folder = tmp_path_factory.mktemp("tiny")
    convert_gguf(write_gguf(folder / "tiny.gguf", seed=1), folder / "model")
    return folder / "model"


@pytest.fixture
def command():
    """Run a command in this process; an exception that reaches the user fails the test."""

    def run(*arguments, **options):
        result = CliRunner().invoke(app, [str(a) for a in arguments], **options)
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            result.exception
        )
        return result

    return run


@pytest.fixture
def python(tmp_path):
    """Run Python in another process, outside the source tree: the installed package is meant."""

    def run(*arguments, **environment):
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | environment,
            timeout=300,
        )

    return run
