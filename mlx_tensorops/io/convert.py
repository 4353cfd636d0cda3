"""Convert a GGUF file to a model folder for mlx-lm."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_tensorops.io.blocks import AFFINE_TYPES, DENSE_TYPES, GROUP_SIZE, Affine, Dense, decode
from mlx_tensorops.io.folder import SOURCE_KEY, new_folder
from mlx_tensorops.io.gguf import GGUFFile, Tensor, open_gguf
from mlx_tensorops.io.llama import (
    Target,
    check_tensors,
    read_config,
    restore_row_order,
    targets,
)
from mlx_tensorops.io.metadata import text, texts
from mlx_tensorops.io.tokenizer import special_ids, write_tokenizer

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Conversion:
    """What ``convert_gguf`` did.

    Attributes:
        out_dir: The model folder.
        tensor_types: How many tensors of each GGUF type were read.
        n_bytes: Size of the weights written.
    """

    out_dir: Path
    tensor_types: dict[str, int]
    n_bytes: int


def convert_gguf(
    path: str | Path,
    out_dir: str | Path,
    *,
    dtype: str = "float32",
    dequantize: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Conversion:
    """Convert a GGUF file of the ``llama`` architecture to an mlx-lm model folder.

    Q4_0, Q4_1 and Q8_0 become MLX's affine quantization with groups of 32: the codes are copied,
    and with ``dtype="float32"`` every value is the GGUF's own, bit for bit. The folder appears
    complete or not at all.

    Args:
        path: The GGUF file.
        out_dir: The folder to write. It may be new, empty, or an earlier result of this function.
        dtype: Type of scales, biases and norms, and so of the activations: ``"float32"``,
            ``"float16"`` (exact scales, rounded norms) or ``"bfloat16"`` (rounds both).
        dequantize: Write plain weights of type ``dtype`` in place of quantized ones.
        force: Replace ``out_dir`` whatever it holds.
        progress: Called with the number of tensors done and their total.

    Returns:
        A summary.

    Raises:
        ValueError: The file is damaged or holds what is not supported, or ``out_dir`` may not be
            replaced.
        OSError: A file cannot be read or written.

    Example:
        >>> convert_gguf("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2")
    """
    if dtype not in DTYPES:
        raise ValueError(f"[convert] dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    path, out_dir = Path(path), Path(out_dir)
    with open_gguf(path) as file, new_folder(out_dir, source=path, force=force) as folder:
        config, table = plan(file)
        _check_types(file.tensors)
        special = special_ids(file.metadata)
        config |= special | {"torch_dtype": dtype, SOURCE_KEY: path.name}
        write_tokenizer(file.metadata, config["max_position_embeddings"], folder)
        weights, bits = _read_weights(file, table, dtype, dequantize, progress)
        config |= _quantization(bits)
        mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
        _write_json(folder / "config.json", config)
        _write_json(folder / "generation_config.json", special)
    types = Counter(tensor.type for tensor in file.tensors.values())
    return Conversion(out_dir, dict(types), sum(array.nbytes for array in weights.values()))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def plan(file: GGUFFile) -> tuple[dict[str, Any], dict[str, Target]]:
    """Read a model's configuration and check that the tensors are those of the model.

    Args:
        file: The file.

    Returns:
        The entries of mlx-lm's config.json, and what each tensor becomes.

    Raises:
        ValueError: The model is not of the architecture, or not whole.
    """
    architecture = text(file.metadata, "general.architecture")
    if architecture != "llama":
        raise ValueError(f"[convert] general.architecture must be 'llama', got {architecture!r}.")
    config = read_config(file.metadata, len(texts(file.metadata, "tokenizer.ggml.tokens")))
    n_layers, n_tensors = config["num_hidden_layers"], len(file.tensors)
    if n_layers > n_tensors:
        raise ValueError(
            f"[convert] llama.block_count must be at most the {n_tensors} tensors, got {n_layers}."
        )
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    table = targets(config)
    check_tensors(file.tensors, table)
    return config, table


def _check_types(tensors: Mapping[str, Tensor]) -> None:
    """Check that MLX has a format with the very values."""
    allowed = (*DENSE_TYPES, *AFFINE_TYPES)
    for tensor in tensors.values():
        if tensor.type not in allowed:
            raise ValueError(
                f"[convert] tensor types must be one of {', '.join(allowed)}, "
                f"got {tensor.type} for {tensor.name!r}, which load_gguf can read."
            )


def _read_weights(
    file: GGUFFile,
    table: Mapping[str, Target],
    dtype: str,
    dequantize: bool,
    progress: Progress | None,
) -> tuple[dict[str, mx.array], dict[str, int]]:
    """Return the arrays to save by name, and the bits of each quantized module by path."""
    weights: dict[str, mx.array] = {}
    bits: dict[str, int] = {}
    for done, (name, target) in enumerate(table.items()):
        if progress:
            progress(done, len(table))
        decoded = decode(file.tensors[name], file.raw(name))
        arrays = _module_arrays(decoded, target)
        if isinstance(decoded, Affine) and dequantize:
            packed = (arrays["weight"], arrays["scales"], arrays["biases"])
            arrays = {"weight": mx.dequantize(*packed, group_size=GROUP_SIZE, bits=decoded.bits)}
        elif isinstance(decoded, Affine):
            bits[target.path] = decoded.bits
        for part, array in arrays.items():
            weights[f"{target.path}.{part}"] = finite(array, dtype, name)
    if progress:
        progress(len(table), len(table))
    return weights, bits


def _module_arrays(decoded: Dense | Affine, target: Target) -> dict[str, mx.array]:
    arrays: dict[str, Any] = {"weight": decoded.weight}
    if isinstance(decoded, Affine):
        arrays |= {"scales": decoded.scales, "biases": decoded.biases}
    if target.n_heads:
        arrays = {part: restore_row_order(a, target.n_heads) for part, a in arrays.items()}
    return {part: mx.array(a) for part, a in arrays.items()}


def finite(array: mx.array, dtype: str, name: str) -> mx.array:
    """Cast to a dtype, codes excepted.

    Args:
        array: Of a tensor.
        dtype: A key of ``DTYPES``.
        name: Of the tensor, for the message.

    Returns:
        The values in the dtype.

    Raises:
        ValueError: A value is not finite there.
    """
    if array.dtype == mx.uint32:
        return array
    cast = array.astype(DTYPES[dtype])
    if not mx.all(mx.isfinite(cast)).item():
        largest = mx.max(mx.abs(array)).item()
        raise ValueError(
            f"[convert] {name} must be finite in {dtype}, got values up to {largest:g}."
        )
    return cast


def _quantization(bits: Mapping[str, int]) -> dict[str, Any]:
    """Describe the quantized modules: the most frequent kind as the default, the others by path."""
    if not bits:
        return {}
    (default, _), *_ = Counter(bits.values()).most_common()
    settings: dict[str, Any] = {"group_size": GROUP_SIZE, "bits": default, "mode": "affine"}
    for path, module_bits in bits.items():
        if module_bits != default:
            settings[path] = {"group_size": GROUP_SIZE, "bits": module_bits, "mode": "affine"}
    # Loaders of the Hugging Face ecosystem look for the second name.
    return {"quantization": settings, "quantization_config": settings}
