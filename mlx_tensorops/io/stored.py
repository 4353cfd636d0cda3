"""Load a GGUF file as a model whose weights stay in the file's own blocks."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten

from mlx_tensorops.io.blocks import DENSE_TYPES, Dense, decode
from mlx_tensorops.io.convert import DTYPES, finite, plan
from mlx_tensorops.io.gguf import GGUFFile, Tensor, open_gguf
from mlx_tensorops.io.llama import Target, restore_row_order
from mlx_tensorops.io.tokenizer import special_ids, write_tokenizer
from mlx_tensorops.layers import BlockEmbedding, BlockLinear


def load_gguf(path: str | Path, *, dtype: str = "float32") -> tuple[Any, Any]:
    """Load a GGUF file of the ``llama`` architecture as an mlx-lm model.

    Quantized tensors keep their bytes: layers become ``BlockLinear`` and ``BlockEmbedding`` in the
    mode of the tensor's type (``"q4_1"``, ``"q6_k"``, ...), and decode them as they multiply. Only
    whole rows of the query and key weights move, to mlx-lm's order.

    Args:
        path: The GGUF file.
        dtype: Type of the norms and embedded tokens, and so of the activations: ``"float32"``,
            ``"float16"`` or ``"bfloat16"``.

    Returns:
        The model and its tokenizer, as ``mlx_lm.load`` returns them.

    Raises:
        ValueError: The file is damaged or holds what is not supported.
        OSError: The file cannot be read.

    Example:
        >>> model, tokenizer = load_gguf("SmolLM2-135M-Instruct.Q4_1.gguf")
        >>> mlx_lm.generate(model, tokenizer, "The capital of France is")
    """
    if dtype not in DTYPES:
        raise ValueError(f"[load_gguf] dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    with open_gguf(Path(path)) as file:
        config, table = plan(file)
        llama = importlib.import_module("mlx_lm.models.llama")
        model = llama.Model(llama.ModelArgs.from_dict(config))
        dense: list[tuple[str, mx.array]] = []
        blocks: list[tuple[str, nn.Module]] = []
        for name, target in table.items():
            tensor = file.tensors[name]
            if tensor.type in DENSE_TYPES:
                dense.append((f"{target.path}.weight", _dense(file, tensor, target, dtype)))
            else:
                blocks.append((target.path, _block(file, tensor, target, dtype)))
        model.update_modules(tree_unflatten(blocks))
        model.load_weights(dense, strict=False)
        mx.eval(model.parameters())
        model.eval()
        return model, _tokenizer(file, config)


def _dense(file: GGUFFile, tensor: Tensor, target: Target, dtype: str) -> mx.array:
    decoded = decode(tensor, file.raw(tensor.name))
    assert isinstance(decoded, Dense)
    return finite(mx.array(_in_order(decoded.weight, target)), dtype, tensor.name)


def _block(file: GGUFFile, tensor: Tensor, target: Target, dtype: str) -> nn.Module:
    octets = np.frombuffer(file.raw(tensor.name), np.uint8)
    weight = mx.array(_in_order(octets.reshape(*tensor.shape[:-1], -1), target))
    mode = tensor.type.lower()
    if target.path == "model.embed_tokens":
        return BlockEmbedding(weight, mode=mode, dtype=DTYPES[dtype])
    return BlockLinear(weight, mode=mode)


def _in_order(rows: np.ndarray[Any, np.dtype[Any]], target: Target) -> Any:
    return restore_row_order(rows, target.n_heads) if target.n_heads else rows


def _tokenizer(file: GGUFFile, config: dict[str, Any]) -> Any:
    """mlx-lm reads tokenizers from a folder."""
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(file.metadata, config["max_position_embeddings"], Path(folder))
        load = importlib.import_module("mlx_lm.utils").load_tokenizer
        end = special_ids(file.metadata).get("eos_token_id")
        return load(Path(folder), eos_token_ids=end)
