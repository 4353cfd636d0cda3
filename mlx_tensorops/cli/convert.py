"""``convert``: a GGUF file to a model folder for mlx-lm."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from mlx_tensorops.cli.demo_extra import import_demo
from mlx_tensorops.cli.display import Display


class Dtype(str, Enum):
    """The types that scales can have."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


def convert(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH.gguf", help="The GGUF file.", exists=True, dir_okay=False, readable=True
        ),
    ],
    out_dir: Annotated[
        Path, typer.Argument(metavar="OUT_DIR", help="The model folder to write.", file_okay=False)
    ],
    scales: Annotated[
        Dtype,
        typer.Option(
            help="Type of scales, biases and norms, and so of the activations. float32 is exact, "
            "float16 rounds the norms, bfloat16 the scales too."
        ),
    ] = Dtype.float32,
    dequantize: Annotated[
        bool, typer.Option("--dequantize", help="Write plain weights of that type.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace OUT_DIR whatever it holds.")
    ] = False,
) -> None:
    """Convert a GGUF file (llama architecture) to a model folder for mlx-lm, exactly.

    Q4_0, Q4_1 and Q8_0 weights become MLX's affine quantization without a change of value. OUT_DIR
    appears complete or not at all.
    """
    display = Display()
    convert_gguf = import_demo("mlx_tensorops.io").convert_gguf
    with display.stage(f"converting {path.name}") as update:
        result = convert_gguf(
            path,
            out_dir,
            dtype=scales.value,
            dequantize=dequantize,
            force=force,
            progress=update,
        )
    kinds = ", ".join(f"{n} {name}" for name, n in sorted(result.tensor_types.items()))
    typer.echo(f"{out_dir}: {kinds} tensors, {result.n_bytes / 1e6:.1f} MB of weights")
