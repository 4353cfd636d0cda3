"""Attention modules of mlx-lm that do without its attention function."""

import importlib.metadata

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import gemma2, muse_spark, plamo2
from mlx_lm.models.cache import BatchKVCache, QuantizedKVCache, make_prompt_cache

import mlx_tensorops as mto
from mlx_tensorops.patch import PatchWarning, attention_adapters

TOKENS = mx.array(np.random.default_rng(3).integers(0, 160, (2, 9)))
GEMMA2 = dict(
    model_type="gemma2",
    hidden_size=64,
    num_hidden_layers=2,
    intermediate_size=96,
    num_attention_heads=4,
    head_dim=16,
    rms_norm_eps=1e-5,
    vocab_size=160,
    num_key_value_heads=2,
    attn_logit_softcapping=0.5,
)
PLAMO2 = dict(
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    hidden_size_per_head=16,
    mamba_d_state=8,
    mamba_num_heads=4,
    mamba_step=2,
    intermediate_size=96,
    vocab_size=160,
)


def built(model: nn.Module) -> nn.Module:
    mx.random.seed(4)
    model.update(
        nn.utils.tree_map(
            lambda a: mx.random.normal(a.shape) * 0.3 if a.ndim > 1 else a, model.parameters()
        )
    )
    return model


def model_of(name: str) -> nn.Module:
    if name == "gemma2":
        return built(gemma2.Model(gemma2.ModelArgs(**GEMMA2)))
    return built(plamo2.Model(plamo2.ModelArgs(**PLAMO2)))


@pytest.fixture(autouse=True)
def _fresh_counts():
    mto.reset_report()


@pytest.fixture(params=["gemma2", "plamo2"])
def model(request):
    return model_of(request.param)


def calls() -> int:
    return sum(row.fused for row in mto.report().modules)


def generated(model: nn.Module) -> mx.array:
    """Logits of a prompt, and of two tokens that follow."""
    cache = make_prompt_cache(model)
    parts = [model(TOKENS, cache=cache), *(model(TOKENS[:, :1], cache=cache) for _ in range(2))]
    return mx.concatenate(parts, axis=1)


def test_same_logits_through_our_op(model):
    expected = generated(model)
    mx.eval(expected)
    with mto.patched(model, strict=True, route="ours"):
        logits = generated(model)
        mx.eval(logits)
        assert calls() == 3 * len(mto.report().modules) > 0
    assert not any(row.fallbacks for row in mto.report().modules)
    assert mx.allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert mx.array_equal(generated(model), expected)


def test_same_gradients(model):
    def loss(model):
        return nn.losses.cross_entropy(model(TOKENS[:, :-1]), TOKENS[:, 1:]).mean()

    step = nn.value_and_grad(model, loss)
    expected = step(model)
    mx.eval(expected)
    with mto.patched(model, route="ours"):
        value, grads = step(model)
        mx.eval(value, grads)
    assert mx.allclose(value, expected[0], rtol=1e-5)
    for (name, grad), (_, other) in zip(
        tree_flatten(grads), tree_flatten(expected[1]), strict=True
    ):
        assert mx.allclose(grad, other, rtol=1e-3, atol=1e-5), name


def test_the_softcap_is_the_model_s():
    model = model_of("gemma2")
    with mto.patched(model, route="ours"):
        capped = model(TOKENS)
        for layer in model.layers:
            layer.self_attn.attn_logit_softcapping = 1e6
        assert not mx.allclose(capped, model(TOKENS), rtol=1e-3, atol=1e-3)


def test_padded_batches_of_gemma2():
    # Not next to the model's own code, which lays a batch's mask over the heads.
    model = model_of("gemma2")
    expected = [model(TOKENS[:1, 3:])[0], model(TOKENS[1:])[0]]
    with mto.patched(model, route="ours"):
        logits = model(TOKENS, cache=[BatchKVCache([3, 0]) for _ in model.layers])
    assert mx.allclose(logits[0, 3:], expected[0], rtol=1e-4, atol=1e-4)
    assert mx.allclose(logits[1], expected[1], rtol=1e-4, atol=1e-4)


def test_a_quantized_cache_works_where_the_model_s_own_code_fails():
    model = built(gemma2.Model(gemma2.ModelArgs(**GEMMA2 | {"head_dim": 64})))
    expected = model(TOKENS)
    caches = [QuantizedKVCache(group_size=64, bits=8) for _ in model.layers]
    with mto.patched(model, route="ours"):
        logits = model(TOKENS, cache=caches)
    assert mx.abs(logits - expected).max() < 0.05 * mx.abs(expected).max()


def test_images_of_muse_spark():
    module = built(
        muse_spark.VisionAttention(muse_spark.VisionArgs(hidden_size=64, num_attention_heads=4))
    )
    x = mx.random.normal((12, 64))
    cos, sin = muse_spark.VisionRoPE2D(head_dim=16)(grid_h=3, grid_w=4)
    expected = module(x, cos=cos, sin=sin)
    with mto.patched(module, strict=True, route="ours"):
        out = module(x, cos=cos, sin=sin)
        assert calls() == 1
    assert mx.allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_by_choice_the_model_s_own_code_runs(model):
    expected = model(TOKENS)
    with mto.patched(model, route="mlx"):
        assert mx.array_equal(model(TOKENS), expected)
    assert calls() == 0
    assert all(row.by_choice for row in mto.report().modules)


@pytest.mark.parametrize("known", ["0.31.9", "1.0.0", None])
def test_another_version_keeps_its_code_and_is_listed(known, monkeypatch):
    def version(name):
        if known is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return known

    monkeypatch.setattr(attention_adapters.metadata, "version", version)
    attention_adapters._version.cache_clear()
    try:
        model = model_of("gemma2")
        with pytest.warns(PatchWarning, match="nothing is patched"):
            report = mto.patch(model)
        assert [row.path for row in report.left_alone] == [
            "model.layers.0.self_attn",
            "model.layers.1.self_attn",
        ]
        assert "known from mlx-lm 0.32.x" in report.left_alone[0].reason
        assert type(model.layers[0].self_attn) is gemma2.Attention
        with pytest.raises(ValueError, match="got 2, the first model.layers.0.self_attn"):
            mto.patch(model, strict=True)
        mto.unpatch(model)
    finally:
        attention_adapters._version.cache_clear()
