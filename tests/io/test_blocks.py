"""Decoded blocks hold the values of the gguf package, bit for bit."""

import gguf
import mlx.core as mx
import numpy as np
import pytest

from mlx_tensorops.io.blocks import Affine, Dense, decode
from mlx_tensorops.io.gguf import Tensor

QUANTIZED = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


def random_blocks(type_name, shape, seed):
    """Any bytes are valid codes; only the float16 numbers of a block must be finite."""
    rng = np.random.default_rng(seed)
    n_blocks, block_bytes = int(np.prod(shape)) // 32, QUANTIZED[type_name]
    blocks = rng.integers(0, 256, (n_blocks, block_bytes), np.uint8)
    n_numbers = 2 if type_name == "Q4_1" else 1
    numbers = rng.standard_normal((n_blocks, n_numbers)) * 10.0 ** rng.integers(
        -8, 3, (n_blocks, 1)
    )
    blocks[:, : 2 * n_numbers] = numbers.astype("<f2").view(np.uint8)
    return blocks.tobytes()


def theirs(type_name, shape, raw):
    kind = gguf.GGMLQuantizationType[type_name]
    rows = np.frombuffer(raw, np.uint8).reshape(*shape[:-1], -1)
    return gguf.quants.dequantize(rows, kind)


def affine_values(affine):
    arrays = [mx.array(a) for a in (affine.weight, affine.scales, affine.biases)]
    return np.array(mx.dequantize(*arrays, group_size=32, bits=affine.bits))


@pytest.mark.parametrize("type_name", QUANTIZED)
@pytest.mark.parametrize("shape", [(1, 32), (7, 64), (64, 576), (3, 5, 96)])
@pytest.mark.parametrize("seed", range(3))
def test_quantized_blocks_are_exact(type_name, shape, seed):
    raw = random_blocks(type_name, shape, seed)
    affine = decode(Tensor("t", type_name, shape, 0, len(raw)), raw)
    assert isinstance(affine, Affine)
    assert affine.weight.shape == (*shape[:-1], shape[-1] * affine.bits // 32)
    assert affine.scales.shape == affine.biases.shape == (*shape[:-1], shape[-1] // 32)
    np.testing.assert_array_equal(affine_values(affine), theirs(type_name, shape, raw))


@pytest.mark.parametrize("type_name", ["Q4_0", "Q8_0"])
def test_the_largest_scale_does_not_overflow(type_name):
    block = bytearray(random_blocks(type_name, (1, 32), 0))
    block[:2] = np.array(65504, "<f2").tobytes()
    affine = decode(Tensor("t", type_name, (1, 32), 0, len(block)), bytes(block))
    np.testing.assert_array_equal(affine_values(affine), theirs(type_name, (1, 32), bytes(block)))


@pytest.mark.parametrize(("type_name", "n_bytes"), [("F32", 4), ("F16", 2), ("BF16", 2)])
def test_dense_types_widen_exactly(type_name, n_bytes):
    raw = np.random.default_rng(1).integers(0, 256, 65536 * n_bytes, np.uint8).tobytes()
    dense = decode(Tensor("t", type_name, (256, 256), 0, len(raw)), raw)
    assert isinstance(dense, Dense)
    expected = theirs(type_name, (256, 256), raw) if n_bytes == 2 else np.frombuffer(raw, "<f4")
    expected = np.asarray(expected, np.float32).reshape(256, 256)
    np.testing.assert_array_equal(dense.weight, expected)


@pytest.mark.parametrize("type_name", QUANTIZED)
def test_packing_is_the_one_mlx_reads_from_gguf(tmp_path, type_name):
    raw = random_blocks(type_name, (8, 64), 3)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    blocks = np.frombuffer(raw, np.uint8).reshape(8, -1)
    writer.add_tensor("t.weight", blocks, raw_dtype=gguf.GGMLQuantizationType[type_name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    loaded = mx.load(str(tmp_path / "one.gguf"))
    affine = decode(Tensor("t", type_name, (8, 64), 0, len(raw)), raw)
    np.testing.assert_array_equal(affine.weight, np.array(loaded["t.weight"]))
    np.testing.assert_array_equal(affine.scales, np.array(loaded["t.scales"].astype(mx.float32)))
    np.testing.assert_array_equal(affine.biases, np.array(loaded["t.biases"].astype(mx.float32)))
