"""Patched attention: who runs it, in which modules, and that everything is put back."""

import copy
import pickle
import subprocess
import sys
from types import ModuleType

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models import base, gpt_oss, llama
from mlx_lm.models.cache import QuantizedKVCache
from tiny_models import VOCABULARY, tiny_llama

import mlx_tensorops as mto
from mlx_tensorops.patch import PatchWarning

TOKENS = mx.array(np.random.default_rng(1).integers(0, VOCABULARY, (2, 9)))
# In a list, where the sweep of modules does not find it.
MLX_LM_S = [base.scaled_dot_product_attention]
NOTHING_QUANTIZED = lambda path, module: False  # noqa: E731


@pytest.fixture(autouse=True)
def _fresh_counts():
    mto.reset_report()
    yield
    assert base.scaled_dot_product_attention is MLX_LM_S[0]
    assert llama.scaled_dot_product_attention is MLX_LM_S[0]


@pytest.fixture
def mlx_calls(monkeypatch):
    """Calls of mx.fast's own attention."""
    calls, original = [], mx.fast.scaled_dot_product_attention

    def counted(*args, **kwargs):
        calls.append(None)
        return original(*args, **kwargs)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", counted)
    return calls


def ops(name: str) -> int:
    rows = mto.report().ops
    return sum(row.count for row in rows if row.op == name and row.outcome == "fused")


def test_no_call_is_left_to_mlx(mlx_calls):
    model = tiny_llama()
    expected = model(TOKENS)
    assert len(mlx_calls) == 2
    with mto.patched(model):
        logits = model(TOKENS)
        mx.eval(logits)
    assert len(mlx_calls) == 2
    assert ops("scaled_dot_product_attention") == 2
    assert mx.allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert mx.array_equal(model(TOKENS), expected)
    assert len(mlx_calls) == 4


def test_a_model_without_quantized_layers_has_its_attention_patched():
    model = tiny_llama(NOTHING_QUANTIZED)
    before = type(model.layers[0].self_attn)
    report = mto.patch(model, strict=True)
    assert [row.path for row in report.modules] == [
        "model.layers.0.self_attn",
        "model.layers.1.self_attn",
    ]
    attention = model.layers[0].self_attn
    assert isinstance(attention, llama.Attention) and type(attention) is not llama.Attention
    assert repr(type(attention)) == repr(before)
    mto.unpatch(model)
    assert type(model.layers[0].self_attn) is llama.Attention


def test_other_models_keep_mlx_s(mlx_calls):
    patched, plain = tiny_llama(), tiny_llama(seed=1)
    with mto.patched(patched):
        plain(TOKENS)
        assert len(mlx_calls) == 2
        patched(TOKENS)
        assert len(mlx_calls) == 2
        plain(TOKENS)
    assert len(mlx_calls) == 4


def test_copies_and_pickles_are_plain():
    model = tiny_llama(NOTHING_QUANTIZED)
    with mto.patched(model):
        attention = model.layers[0].self_attn
        for other in (copy.deepcopy(attention), pickle.loads(pickle.dumps(attention))):
            assert type(other) is llama.Attention
        assert type(type(attention)(model.args)) is llama.Attention


def test_modules_imported_meanwhile_are_swept():
    model, late = tiny_llama(), ModuleType("mto_test_late_module")
    sys.modules[late.__name__] = late
    try:
        with mto.patched(model), mto.patched(model):
            exec("from mlx_lm.models.base import scaled_dot_product_attention", vars(late))
            assert late.scaled_dot_product_attention is base.scaled_dot_product_attention
            assert late.scaled_dot_product_attention is not MLX_LM_S[0]
        assert late.scaled_dot_product_attention is MLX_LM_S[0]
    finally:
        del sys.modules[late.__name__]


def test_an_error_leaves_no_scope_behind(mlx_calls):
    model, plain = tiny_llama(), tiny_llama()
    with mto.patched(model):
        with pytest.raises(ValueError):
            model.layers[0].self_attn(mx.zeros((2, 9, 128)), mask=mx.zeros((3, 3)))
        plain(TOKENS)
    assert len(mlx_calls) == 2


def test_sinks_and_windows():
    """gpt-oss: sinks, every second layer with a window, rotating caches."""
    arguments = gpt_oss.ModelArgs(
        num_hidden_layers=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=64,
        head_dim=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
        rope_scaling=None,
    )
    mx.random.seed(2)
    model = gpt_oss.Model(arguments)
    for layer in model.layers:
        layer.self_attn.sinks = mx.random.normal((4,))

    def run():
        cache = model.make_cache()
        return [model(TOKENS[:1], cache=cache), model(TOKENS[:1, :1], cache=cache)]

    expected = run()
    with mto.patched(model):
        for ours, theirs in zip(run(), expected, strict=True):
            assert mx.allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    assert ops("scaled_dot_product_attention") == 4


@pytest.mark.parametrize("bits", (4, 8))
def test_quantized_caches(bits, mlx_calls):
    model = tiny_llama()

    def run():
        cache = [QuantizedKVCache(32, bits) for _ in model.layers]
        return [model(TOKENS, cache=cache), model(TOKENS[:, :1], cache=cache)]

    expected = run()
    with mto.patched(model):
        for ours, theirs in zip(run(), expected, strict=True):
            assert mx.allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    assert ops("quantized_scaled_dot_product_attention") == 4
    assert mto.report().total_fallbacks == 0 and not mlx_calls


def test_what_no_kernel_covers_stays_mlx_s(mlx_calls):
    model = tiny_llama(NOTHING_QUANTIZED)
    model.set_dtype(mx.float64)
    with mto.patched(model), pytest.warns(PatchWarning, match="of dtype float64"):
        mx.eval(model(TOKENS))
    assert len(mlx_calls) == 2
    assert [row.n_fallbacks for row in mto.report().modules] == [1, 1]


def test_gradients_of_attention_alone():
    model = tiny_llama(NOTHING_QUANTIZED)

    def loss(model):
        return nn.losses.cross_entropy(model(TOKENS[:, :-1]), TOKENS[:, 1:]).mean()

    expected = nn.value_and_grad(model, loss)(model)
    with mto.patched(model):
        found = nn.value_and_grad(model, loss)(model)
        mx.eval(found)
    assert ops("scaled_dot_product_attention_vjp") == 2
    assert abs(found[0].item() - expected[0].item()) < 1e-5
    pairs = zip(nn.utils.tree_flatten(found[1]), nn.utils.tree_flatten(expected[1]), strict=True)
    for (name, ours), (_, theirs) in pairs:
        scale = mx.abs(theirs).max().item()
        assert mx.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * scale), name


BEFORE_AND_AFTER = """
import mlx.core as mx
mx.set_default_device(mx.cpu)
import mlx_tensorops as mto
{early}
from mlx_lm.models import llama
{late}
arguments = llama.ModelArgs("llama", 64, 1, 64, 4, 1e-5, 32)
model = llama.Model(arguments)
mx.eval(model(mx.array([[1, 2, 3]])))
print(sum(r.count for r in mto.report().ops if r.op == "scaled_dot_product_attention"))
mto.unpatch()
from mlx_lm.models import base, qwen2
assert qwen2.scaled_dot_product_attention is base.scaled_dot_product_attention
assert llama.scaled_dot_product_attention.__module__ == "mlx_lm.models.base"
mx.eval(model(mx.array([[1, 2, 3]])))
print(sum(r.count for r in mto.report().ops if r.op == "scaled_dot_product_attention"))
"""


@pytest.mark.parametrize("moment", ("early", "late"))
def test_every_model_of_the_process(moment, other_process, tmp_path):
    """patch() before or after mlx-lm is imported."""
    program = BEFORE_AND_AFTER.format(**({"early": "", "late": ""} | {moment: "mto.patch()"}))
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["1", "1"], done


def test_drop_in_takes_mx_fast_s(mlx_calls):
    model, q = tiny_llama(), mx.random.normal((1, 2, 3, 8))
    expected = model(TOKENS)
    del mlx_calls[:]
    with mto.drop_in():
        # What stood in MLX's place before.
        assert mx.fast.scaled_dot_product_attention.__module__ != __name__
        assert mx.allclose(model(TOKENS), expected, rtol=1e-4, atol=1e-4)
        fused = mx.fast.scaled_dot_product_attention(q, q, q, scale=1.0, force_fused=True)
        sinks = {"mask": "causal", "sinks": mx.ones((2,))}
        mx.eval(fused, mx.fast.scaled_dot_product_attention(q, q, q, scale=1.0, **sinks))
        with pytest.raises(ValueError, match="sinks must have one value a query head"):
            mx.fast.scaled_dot_product_attention(q, q, q, scale=1.0, sinks=mx.ones((3,)))
        with pytest.raises(TypeError):
            mx.fast.scaled_dot_product_attention(q, q, [q], scale=1.0)
    assert not mlx_calls
    assert ops("scaled_dot_product_attention") == 4
