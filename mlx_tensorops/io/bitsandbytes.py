"""4-bit weights as bitsandbytes saves them in safetensors files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np

_MODES = {"nf4": "nf4", "fp4": "bnb_fp4"}
_OP = "[bitsandbytes_weight]"


def bitsandbytes_weight(tensors: Mapping[str, mx.array], name: str) -> dict[str, Any]:
    """Take one 4-bit weight out of the tensors of a file, as ``BlockLinear`` takes it.

    The codes stay as they are. The scales of double quantization, themselves 8-bit codes under
    a scale each 256, are decoded to float32: ``map[code] * scale + offset``.

    Args:
        tensors: What ``mx.load`` returned.
        name: Of the weight, such as ``"model.layers.0.mlp.up_proj.weight"``.

    Returns:
        ``weight``, ``scales``, ``mode`` and ``group_size``.

    Raises:
        ValueError: It is no 4-bit weight, or rows are no multiple of its block size.

    Example:
        >>> layer = BlockLinear(**bitsandbytes_weight(mx.load(path), "lm_head.weight"))
    """
    states = {mode: f"{name}.quant_state.bitsandbytes__{kind}" for kind, mode in _MODES.items()}
    mode = next((mode for mode, key in states.items() if key in tensors), None)
    if mode is None:
        raise ValueError(f"{_OP} name must be that of a 4-bit weight, got {name!r}.")
    state = json.loads(bytes(np.array(tensors[states[mode]], np.uint8)))
    (n_rows, n_columns), group_size = state["shape"], state["blocksize"]
    if n_columns % group_size:
        raise ValueError(
            f"{_OP} rows must be a multiple of the block size {group_size}, got {n_columns} "
            f"for {name!r}."
        )
    absmax = np.array(tensors[f"{name}.absmax"])
    if "nested_blocksize" in state:
        levels, outer = (
            np.array(tensors[f"{name}.nested_{part}"], np.float32)
            for part in ("quant_map", "absmax")
        )
        scales = np.repeat(outer, state["nested_blocksize"])[: absmax.size]
        absmax = levels[absmax] * scales + np.float32(state["nested_offset"])
    return {
        "weight": tensors[name].reshape(n_rows, n_columns // 2),
        "scales": mx.array(absmax.astype(np.float32).reshape(n_rows, n_columns // group_size)),
        "mode": mode,
        "group_size": group_size,
    }
