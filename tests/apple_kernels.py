"""Apple's own kernels, out of the mlx-metal wheel for macOS: judges of the emulator.

The wheel is downloaded once, by pip, into build/, and never becomes part of the repository.
"""

import subprocess
import sys
import zipfile
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import numpy as np

BUILD = Path(__file__).parents[1] / "build"
PLATFORM = "macosx_26_0_arm64"
KERNELS = "mlx/include/mlx/backend/metal/kernels/"


@lru_cache(maxsize=1)
def include_folder() -> Path:
    """The folder from which kernels are included as "mlx/backend/metal/kernels/...": MLX's."""
    mlx = version("mlx")
    unpacked = BUILD / "apple-kernels" / mlx
    stamp = unpacked / ".complete"
    if not stamp.exists():
        with zipfile.ZipFile(_wheel(mlx)) as archive:
            members = [name for name in archive.namelist() if name.startswith(KERNELS)]
            archive.extractall(unpacked, members)
        stamp.touch()
    return unpacked / "mlx" / "include"


def _wheel(mlx: str) -> Path:
    name = f"mlx_metal-{mlx}-*.whl"
    folder = BUILD / "macos-cross" / "wheels" / PLATFORM  # where the macOS build has it, too
    if not list(folder.glob(name)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", "--platform", PLATFORM]
        command += ["--python-version", "312", "--dest", str(folder), f"mlx-metal=={mlx}"]
        if subprocess.run(command).returncode:
            raise RuntimeError(
                f"these tests run kernels of MLX's macOS wheel and could not download it (once, "
                f"78 MB). Put mlx_metal-{mlx}-*-{PLATFORM}.whl into {folder}, or try again:\n"
                f"{' '.join(command)}"
            )
    return next(folder.glob(name))


def source(*headers: str) -> str:
    """A source that includes kernel headers, as MLX's own .metal files do."""
    lines = ["#include <metal_stdlib>", "#include <metal_math>", "#include <metal_simdgroup>"]
    lines += [f'#include "mlx/backend/metal/kernels/{header}"' for header in headers]
    return "\n".join(lines) + "\n"


def bfloat16(x: np.ndarray) -> np.ndarray:
    """The bits of float32 values rounded to bfloat16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def float32(x: np.ndarray) -> np.ndarray:
    """float32 values of an array of float32, float16, or the bits of bfloat16."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32)


DTYPES = {"float": np.float32, "half": np.float16, "bfloat16_t": np.uint16}


def rounded(x: np.ndarray, kind: str) -> np.ndarray:
    """The values in a Metal type's NumPy form."""
    return bfloat16(x) if kind == "bfloat16_t" else x.astype(DTYPES[kind])


# Half a unit in the last place, relative: the one rounding of an output.
ROUNDING = {"float": 2.0**-24, "half": 2.0**-11, "bfloat16_t": 2.0**-8}


def assert_within(actual: np.ndarray, expected: np.ndarray, budget: np.ndarray, kind: str) -> None:
    """Check results in the type `kind` against float64, with a budget for each before rounding."""
    got = float32(actual).astype(np.float64)
    # Half the distance of subnormal halves, where the relative rounding is coarser.
    rounding = ROUNDING[kind] * (np.abs(expected) + budget) + (2.0**-25 if kind == "half" else 0)
    excess = np.abs(got - expected) / (budget + rounding + np.finfo(np.float32).tiny)
    worst = int(np.nan_to_num(excess, nan=np.inf).argmax())
    assert not np.isnan(got).any(), f"NaN at {np.isnan(got).argmax()}"
    assert excess.max() <= 1, (
        f"{got.flat[worst]} is not {expected.flat[worst]}: {excess.max():.3g} times the budget"
    )


def launch(library, name, size, group=(32,), /, *, by="grid", allow=(), constants=None, **values):
    """Launch with arguments by the names that the kernel gives them; others are not bound.

    size: of the grid, in threadgroups, or in threads with by="threads".
    allow: kinds of findings that are known to do no harm.
    """
    kernel = library.pipeline(name, constants)
    indices = {a.name: a.index for a in kernel.arguments if a.kind != "threadgroup"}
    unknown = values.keys() - indices.keys()
    assert not unknown, f"{name} has no {unknown}, but {sorted(indices)}"
    buffers = {index: values.get(argument) for argument, index in indices.items()}
    result = kernel.launch(buffers, threadgroup=tuple(group), check=not allow, **{by: tuple(size)})
    wrong = [f for f in result.findings if f.severity != "note" and f.kind not in allow]
    assert not wrong, [str(finding) for finding in wrong]
    return result


def strides(array: np.ndarray) -> np.ndarray:
    """Strides in elements, as MLX hands them over."""
    return np.array([stride // array.itemsize for stride in array.strides], np.int64)
