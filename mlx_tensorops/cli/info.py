"""``info``: what is installed and what it can do here."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from typing import Annotated, Any

import mlx.core as mx
import typer

from mlx_tensorops import __version__, _ext
from mlx_tensorops.formats import formats

_PACKAGES = ("mlx", "mlx-lm")
_DTYPES = (mx.float32, mx.float16, mx.bfloat16)
_BITS = range(1, 9)
_GROUP_SIZES = (16, 32, 64, 128, 256)


def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show versions, instruction set, threads, MLX's device, and what our ops support here."""
    facts = _facts()
    if as_json:
        typer.echo(json.dumps(facts | {"supports": list(_supports())}, indent=1))
        return
    for name, value in facts.items():
        typer.echo(f"{name:<20} {value}")
    for row in _supports():
        typer.echo(f"{row['op']:<20} {row['backend']}, affine: {_describe(row)}")
        typer.echo(f"{'':<20} {row['backend']}, other modes: {' '.join(row['modes'])}")


def _facts() -> dict[str, Any]:
    backends = ["cpu", *(name for name in ("metal", "cuda") if getattr(mx, name).is_available())]
    return {
        "mlx-tensorops": __version__,
        **{name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "instruction set": _ext.cpu_isa(),
        "threads": _ext.num_threads(),
        "MLX device": str(mx.default_device()),
        "MLX backends": " ".join(backends),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _supports() -> Iterator[dict[str, Any]]:
    """One row for each op and backend: the cases of mode "affine", and the other modes."""
    modes = formats()
    affine = modes.pop("affine")
    for op, backends in affine.ops.items():
        for backend in backends:
            cases = [
                case
                for case in product(_DTYPES, _BITS, _GROUP_SIZES)
                if not _ext.supports(op, backend, *case, "affine")
            ]
            dtypes, bits, group_sizes = (
                sorted(set(column), key=str) for column in zip(*cases, strict=True)
            )
            yield {
                "op": op,
                "backend": backend,
                "dtypes": [str(dtype).removeprefix("mlx.core.") for dtype in dtypes],
                "bits": sorted(bits),
                "group_sizes": sorted(group_sizes),
                "modes": [name for name, mode in modes.items() if backend in mode.ops.get(op, ())],
            }


def _describe(row: dict[str, Any]) -> str:
    bits, groups = (" ".join(map(str, row[key])) for key in ("bits", "group_sizes"))
    return f"{' '.join(row['dtypes'])}; bits {bits}; groups of {groups}"
