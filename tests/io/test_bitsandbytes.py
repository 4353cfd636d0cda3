"""4-bit weights of bitsandbytes, with and without double quantization, read value by value."""

import json

import mlx.core as mx
import numpy as np
import pytest

import mlx_tensorops as mto
from mlx_tensorops.io import bitsandbytes_weight
from mlx_tensorops.layers import BlockLinear
from mlx_tensorops.reference.formats.codebook import MODES

N, K, BLOCK, NESTED = 96, 256, 64, 256
NAME = "model.layers.0.mlp.up_proj.weight"


def saved(kind, nested):
    """The tensors of a file, and the float64 values that they mean."""
    rng = np.random.default_rng(0)
    octets = rng.integers(0, 256, (N * K // 2, 1), np.uint8)
    codes = np.stack([octets[:, 0] >> 4, octets[:, 0] & 15], -1).reshape(-1)
    levels = MODES["nf4" if kind == "nf4" else "bnb_fp4"].levels
    state = {"quant_type": kind, "blocksize": BLOCK, "dtype": "float16", "shape": [N, K]}
    tensors = {NAME: octets, f"{NAME}.quant_map": levels}
    n_blocks = N * K // BLOCK
    if nested:
        table = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
        inner = rng.integers(0, 256, n_blocks, np.uint8)
        outer = rng.uniform(0.01, 0.1, -(-n_blocks // NESTED)).astype(np.float32)
        offset = 0.25
        state |= {"nested_blocksize": NESTED, "nested_dtype": "float32", "nested_offset": offset}
        tensors |= {f"{NAME}.absmax": inner, f"{NAME}.nested_absmax": outer}
        tensors[f"{NAME}.nested_quant_map"] = table
        absmax = [float(table[c]) * float(outer[i // NESTED]) + offset for i, c in enumerate(inner)]
    else:
        tensors[f"{NAME}.absmax"] = rng.uniform(0.1, 1, n_blocks).astype(np.float32)
        absmax = tensors[f"{NAME}.absmax"].tolist()
    packed_state = np.frombuffer(json.dumps(state).encode(), np.uint8)
    tensors[f"{NAME}.quant_state.bitsandbytes__{kind}"] = packed_state
    values = [float(levels[c]) * absmax[i // BLOCK] for i, c in enumerate(codes)]
    return {key: mx.array(value) for key, value in tensors.items()}, np.reshape(values, (N, K))


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [True, False])
def test_values(tmp_path, kind, nested):
    tensors, values = saved(kind, nested)
    assert len(values[0]) == K and NESTED < N * K // BLOCK
    path = str(tmp_path / "model.safetensors")
    mx.save_safetensors(path, tensors)
    arguments = bitsandbytes_weight(mx.load(path), NAME)
    layer = BlockLinear(**arguments)
    options = {"group_size": layer.group_size, "mode": layer.mode}
    decoded = np.array(mto.dequantize(layer.weight, layer.scales, **options))
    np.testing.assert_allclose(decoded, values, rtol=3e-7)
    y = layer(mx.ones((1, K)))
    np.testing.assert_allclose(np.array(y)[0], values.sum(1), rtol=1e-4, atol=1e-4)


def test_another_weight():
    tensors, _ = saved("nf4", True)
    with pytest.raises(ValueError, match=r"name must be that of a 4-bit weight, got 'lm_head"):
        bitsandbytes_weight(tensors, "lm_head.weight")


def test_blocks_across_rows():
    tensors, _ = saved("nf4", False)
    key = f"{NAME}.quant_state.bitsandbytes__nf4"
    state = json.loads(bytes(np.array(tensors[key]))) | {"shape": [N * 8, K // 8]}
    tensors[key] = mx.array(np.frombuffer(json.dumps(state).encode(), np.uint8))
    with pytest.raises(ValueError, match="rows must be a multiple of the block size 64, got 32"):
        bitsandbytes_weight(tensors, NAME)
