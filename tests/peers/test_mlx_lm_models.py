"""mlx-lm models, patched: the same tokens with every cache, batches, mixed bits, other families."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models import mixtral, qwen2
from mlx_lm.models.cache import BatchKVCache, make_prompt_cache
from tiny_models import VOCABULARY, mixed_bits, state_of, tiny_llama

import mlx_tensorops as mto

N_TOKENS = 12
PROMPT = mx.array(np.random.default_rng(3).integers(0, VOCABULARY, 21))

QUANTIZATIONS = {
    "4 bits": {"bits": 4, "group_size": 32},
    "8 bits": {"bits": 8, "group_size": 64},
    "3 bits": {"bits": 3, "group_size": 128},
    "1 bit": {"bits": 1, "group_size": 32},
    "mixed": mixed_bits,
}
CACHES = {
    "plain": {},
    "chunked prefill": {"prefill_step_size": 5},
    "rotating": {"max_kv_size": 16},
    "quantized": {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 0},
    "quantized later": {"kv_bits": 4, "kv_group_size": 32, "quantized_kv_start": 24},
}


@pytest.fixture(autouse=True)
def _fresh_counts():
    mto.reset_report()


def sample(log_probabilities: mx.array) -> mx.array:
    """Draw a token: greedily, a random model says the same word for ever."""
    return mx.random.categorical(log_probabilities)


def generated(model: nn.Module, **options) -> tuple[list[int], mx.array]:
    mx.random.seed(5)
    steps = list(generate_step(PROMPT, model, max_tokens=N_TOKENS, sampler=sample, **options))
    return [int(token) for token, _ in steps], mx.stack([logits for _, logits in steps])


def assert_same(actual: tuple[list[int], mx.array], expected: tuple[list[int], mx.array]) -> None:
    assert actual[0] == expected[0] and len(set(expected[0])) > 3
    assert_close(actual[1], expected[1])


def assert_close(actual: mx.array, expected: mx.array) -> None:
    assert actual.dtype == expected.dtype
    assert mx.allclose(actual, expected, rtol=1e-4, atol=1e-4), mx.abs(actual - expected).max()


@pytest.mark.parametrize("quantization", QUANTIZATIONS.values(), ids=QUANTIZATIONS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_same_tokens(quantization, tied):
    model = tiny_llama(quantization, tied=tied)
    before, expected = state_of(model), generated(model)
    with mto.patched(model):
        assert_same(generated(model), expected)
    assert state_of(model) == before
    report = mto.report()
    assert not report.never_called and report.total_fused > 15 * N_TOKENS
    assert not report.total_fallbacks


@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
def test_caches(cache):
    model = tiny_llama()
    expected = generated(model, **cache)
    with mto.patched(model), mto.drop_in():
        assert_same(generated(model, **cache), expected)
    report = mto.report()
    assert report.total_fallbacks == 0
    if "kv_bits" in cache:
        counts = {row.op: row.count for row in report.ops}
        assert counts["quantize"] > 0
        assert counts["quantized_scaled_dot_product_attention"] > 0


def test_logits_of_prefill_and_decoding():
    model = tiny_llama()
    prompt, following = PROMPT[None, :-1], PROMPT[None, -1:]

    def run() -> list[mx.array]:
        cache = make_prompt_cache(model)
        return [model(prompt, cache=cache), model(following, cache=cache), model(PROMPT[None])]

    expected = run()
    with mto.patched(model):
        actual = run()
    for ours, theirs in zip(actual, expected, strict=True):
        assert_close(ours, theirs)
    assert_close(actual[1][0, 0], actual[2][0, -1])


def test_batch_with_left_padding():
    model = tiny_llama()
    rows, padding = [PROMPT[:9], PROMPT[9:14]], [0, 4]
    batch = mx.stack([rows[0], mx.concatenate([mx.zeros(4, rows[1].dtype), rows[1]])])

    def run() -> list[mx.array]:
        cache = [BatchKVCache(padding) for _ in model.layers]
        first = model(batch, cache=cache)
        return [first, model(mx.argmax(first[:, -1:], axis=-1), cache=cache)]

    expected = run()
    with mto.patched(model):
        actual = run()
        alone = [model(row[None])[0, -1] for row in rows]
    for ours, theirs in zip(actual, expected, strict=True):
        # What a padded position computes is nobody's.
        assert_close(ours[0], theirs[0])
        assert_close(ours[1, -1], theirs[1, -1])
    for row, logits in enumerate(alone):
        assert_close(actual[0][row, -1], logits)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_16_bit_models_keep_their_dtype_and_stay_near_float32(dtype):
    model = tiny_llama(dtype=dtype)
    with mto.patched(model):
        logits = model(PROMPT[None])
    assert logits.dtype == dtype
    model.set_dtype(mx.float32)
    expected = model(PROMPT[None])
    error = mx.linalg.norm(logits.astype(mx.float32) - expected) / mx.linalg.norm(expected)
    assert error.item() < (0.003 if dtype == mx.float16 else 0.03)
    assert mto.report().total_fallbacks == 0


def test_qwen2_has_biased_linears():
    arguments = qwen2.ModelArgs(
        model_type="qwen2",
        hidden_size=64,
        num_hidden_layers=2,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        vocab_size=VOCABULARY,
    )
    model = qwen2.Model(arguments)
    nn.quantize(model, bits=5, group_size=32)
    assert "bias" in model.layers[0].self_attn.q_proj
    expected = model(PROMPT[None])
    with mto.patched(model, strict=True):
        assert_close(model(PROMPT[None]), expected)
    assert mto.report().total_fallbacks == 0


def test_experts_of_mixtral_are_left_alone():
    arguments = mixtral.ModelArgs(
        model_type="mixtral",
        hidden_size=64,
        num_hidden_layers=2,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        vocab_size=VOCABULARY,
    )
    model = mixtral.Model(arguments)
    nn.quantize(model, bits=4, group_size=32)
    expected = model(PROMPT[None])
    with mto.patched(model), mto.drop_in():
        assert_close(model(PROMPT[None]), expected)
    left_alone = mto.report().left_alone
    assert len(left_alone) == 2 * 3
    assert {row.class_name for row in left_alone} == {"QuantizedSwitchLinear"}
    with pytest.raises(ValueError, match="QuantizedSwitchLinear"):
        mto.patch(model, strict=True)
