"""The decoders of every backend against independent ones: gguf's and MLX's."""

import gguf
import mlx.core as mx
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

import mlx_tensorops as mto
from mlx_tensorops import _ext

GGML = [row["name"] for row in _ext.formats() if row["scales"] == "inside"]


@pytest.mark.parametrize("mode", GGML)
def test_blocks_of_ggml(backend, isa, mode):
    kind = getattr(GGMLQuantizationType, mode.upper())
    block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    w = np.random.default_rng(0).integers(0, 256, (33, 3 * block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(w, kind)
    options = {"mode": mode, "force_fused": True, "stream": backend.device}
    actual = np.array(mto.dequantize(mx.array(w), **options))
    same = actual.view(np.uint32) == expected.view(np.uint32)
    assert (same | np.isnan(actual) & np.isnan(expected)).all()


@pytest.mark.parametrize("transpose", (True, False))
@pytest.mark.parametrize("m", (1, 4, 40))
@pytest.mark.parametrize("mode", ("mxfp4", "mxfp8", "nvfp4"))
def test_products_of_mlx_s_modes(backend, isa, mode, m, transpose):
    w, scales = mx.quantize(mx.random.normal((70, 256), key=mx.random.key(1)), mode=mode)
    decoded = np.array(mx.dequantize(w, scales, mode=mode, dtype=mx.float32), np.float64)
    x = mx.random.normal((m, 256 if transpose else 70), key=mx.random.key(2))
    options = {"mode": mode, "force_fused": True, "stream": backend.device}
    y = mto.quantized_matmul(x, w, scales, transpose=transpose, **options)
    expected = np.array(x, np.float64) @ (decoded.T if transpose else decoded)
    assert np.abs(np.array(y) - expected).max() < 1e-4
