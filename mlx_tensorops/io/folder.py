"""Write a folder completely or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The key in config.json by which a folder is known to be an earlier result, safe to replace.
SOURCE_KEY = "mlx_tensorops_source"


@contextmanager
def new_folder(out_dir: Path, *, source: Path, force: bool) -> Iterator[Path]:
    """Give a temporary folder that takes the place of ``out_dir`` when the block succeeds.

    Until then ``out_dir`` is untouched; when the block fails, the temporary folder is deleted.

    Args:
        out_dir: The folder to create or to replace.
        source: A file that must survive.
        force: Replace a folder that is not an earlier result.

    Yields:
        The temporary folder, beside ``out_dir`` so that the final step is a rename.

    Raises:
        ValueError: ``out_dir`` may not be replaced.
        OSError: The file system refuses.
    """
    out_dir = out_dir.resolve()
    _check_replaceable(out_dir, source.resolve(), force)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.", dir=out_dir.parent))
    try:
        yield temporary
        # mkdtemp makes a private folder; the result gets the permissions of an ordinary one.
        os.chmod(temporary, 0o777 & ~_umask())
        _swap(temporary, out_dir)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_replaceable(out_dir: Path, source: Path, force: bool) -> None:
    if out_dir.exists() and not out_dir.is_dir():
        raise ValueError(f"[convert] out_dir must be a folder, got the file {str(out_dir)!r}.")
    if any(path.is_relative_to(out_dir) for path in (source, Path.cwd(), Path.home())):
        raise ValueError(
            "[convert] out_dir must not contain the GGUF file, the current directory or the home "
            f"directory, got {str(out_dir)!r}."
        )
    if out_dir.is_dir() and any(out_dir.iterdir()) and not force and not _is_our_result(out_dir):
        raise ValueError(
            "[convert] out_dir must be new, empty or an earlier result unless force is set, "
            f"got {str(out_dir)!r}."
        )


def _is_our_result(folder: Path) -> bool:
    try:
        return SOURCE_KEY in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def _umask() -> int:
    # The mask can only be read by setting it.
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _swap(temporary: Path, out_dir: Path) -> None:
    if not out_dir.exists():
        os.rename(temporary, out_dir)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.", dir=out_dir.parent))
    os.rename(out_dir, aside / "old")
    try:
        os.rename(temporary, out_dir)
    except OSError:
        os.rename(aside / "old", out_dir)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
