"""Training through patched layers: adapters, scales and biases, checkpoints, compiled steps."""

from functools import partial

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optimizers
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.lora import LoRALinear
from mlx_lm.tuner.trainer import default_loss, grad_checkpoint
from mlx_lm.tuner.utils import linear_to_lora_layers, remove_lora_layers
from tiny_models import VOCABULARY, tiny_llama

import mlx_tensorops as mto

LORA = {"rank": 4, "scale": 2.0, "dropout": 0.0}
LINEARS = ["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"]


@pytest.fixture(autouse=True)
def _fresh_counts():
    mto.reset_report()


@pytest.fixture
def batch() -> tuple[mx.array, mx.array]:
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (2, 12))
    # Columns are the start of the answer and the length, one row being padded.
    return mx.array(tokens), mx.array([[0, 12], [3, 9]])


def with_adapters(model: nn.Module, use_dora: bool = False, seed: int = 7) -> nn.Module:
    """Adapters whose second factor is not zero, so that every factor gets a gradient."""
    mx.random.seed(seed)
    model.freeze()
    linear_to_lora_layers(model, 2, LORA | {"keys": LINEARS}, use_dora=use_dora)
    for _, module in model.named_modules():
        if "lora_b" in module:
            module.lora_b = 0.1 * mx.random.normal(module.lora_b.shape)
    return model


def loss_and_grads(model: nn.Module, batch: tuple[mx.array, mx.array]):
    (loss, _), grads = nn.value_and_grad(model, default_loss)(model, *batch)
    return loss, dict(tree_flatten(grads))


def assert_close(actual: dict[str, mx.array], expected: dict[str, mx.array]) -> None:
    assert actual.keys() == expected.keys() and expected
    for name, gradient in expected.items():
        scale = mx.abs(gradient).max().item()
        assert scale > 0, name
        assert mx.allclose(actual[name], gradient, rtol=1e-3, atol=1e-4 * scale), name


def test_lora_step(batch):
    model = with_adapters(tiny_llama())
    loss, grads = loss_and_grads(model, batch)
    with mto.patched(model):
        patched_loss, patched_grads = loss_and_grads(model, batch)
    assert abs(patched_loss.item() - loss.item()) < 1e-5
    assert len(grads) == 2 * 2 * len(LINEARS)
    assert_close(patched_grads, grads)
    # Seven linears and the attention in each of two layers, the look-up and the head.
    assert (mto.report().total_fused, mto.report().total_fallbacks) == (18, 0)


def test_adapters_of_the_tied_embedding(batch):
    model = tiny_llama()
    model.freeze()
    linear_to_lora_layers(model, 2, LORA | {"keys": LINEARS})
    from mlx_lm.tuner.lora import LoRAEmbedding

    model.model.embed_tokens = LoRAEmbedding.from_base(model.model.embed_tokens, r=4)
    model.model.embed_tokens.lora_b = 0.1 * mx.random.normal((4, 128))
    loss, grads = loss_and_grads(model, batch)
    with mto.patched(model):
        patched_loss, patched_grads = loss_and_grads(model, batch)
    assert abs(patched_loss.item() - loss.item()) < 1e-5
    assert_close(
        {name: grads for name, grads in patched_grads.items() if "embed" in name},
        {name: grads for name, grads in grads.items() if "embed" in name},
    )


def test_adapters_added_fused_and_removed_while_patched(batch):
    model, plain = tiny_llama(), tiny_llama()
    with mto.patched(model):
        with_adapters(model)
        assert isinstance(model.layers[0].self_attn.q_proj, LoRALinear)
        loss, _ = loss_and_grads(model, batch)
        assert abs(loss.item() - loss_and_grads(with_adapters(plain), batch)[0].item()) < 1e-5
        assert mto.report().total_fallbacks == 0

        fused = model.layers[0].self_attn.q_proj.fuse()
        assert type(fused) is nn.QuantizedLinear and fused.bits == 4
        expected = plain.layers[0].self_attn.q_proj.fuse()
        assert mx.array_equal(fused.weight, expected.weight)
        model.layers[0].self_attn.q_proj = fused
        remove_lora_layers(model)
    assert {type(module) for module in model.modules()} == {
        type(module) for module in tiny_llama().modules()
    }


def test_dora_step_is_unchanged(batch):
    model = with_adapters(tiny_llama(), use_dora=True)
    loss, grads = loss_and_grads(model, batch)
    with mto.patched(model):
        patched_loss, patched_grads = loss_and_grads(model, batch)
    assert abs(patched_loss.item() - loss.item()) < 1e-5
    assert_close(patched_grads, grads)


def test_gradients_of_scales_and_biases(batch):
    """What distilled weight quantization trains: the parameters of the format itself."""
    model = tiny_llama()
    model.freeze()
    for module in model.modules():
        if hasattr(module, "bits"):
            module.unfreeze(keys=["scales", "biases"], recurse=False)
    loss, grads = loss_and_grads(model, batch)
    with mto.patched(model):
        patched_loss, patched_grads = loss_and_grads(model, batch)
    assert abs(patched_loss.item() - loss.item()) < 1e-5
    # Seven linears in each of two layers, and the embedding.
    assert len(grads) == 2 * 15
    assert_close(patched_grads, grads)


def test_checkpointed_layers_recompute_through_our_ops(batch, monkeypatch):
    model = with_adapters(tiny_llama())
    loss, grads = loss_and_grads(model, batch)
    layer_class = type(model.layers[0])
    monkeypatch.setattr(layer_class, "__call__", layer_class.__call__)
    grad_checkpoint(model.layers[0])
    with mto.patched(model):
        patched_loss, patched_grads = loss_and_grads(model, batch)
    assert abs(patched_loss.item() - loss.item()) < 1e-5
    assert_close(patched_grads, grads)
    # The layers run twice, the look-up and the head once.
    assert (mto.report().total_fused, mto.report().total_fallbacks) == (2 * 16 + 2, 0)


def test_compiled_training_follows_the_unpatched_course(batch, tracing):
    def train(is_patched: bool) -> list[float]:
        model = with_adapters(tiny_llama())
        if is_patched:
            mto.patch(model)
        optimizer = optimizers.SGD(learning_rate=0.5)
        state = [model.state, optimizer.state]

        @partial(mx.compile, inputs=state, outputs=state)
        def step(tokens, lengths):
            (loss, _), grads = nn.value_and_grad(model, default_loss)(model, tokens, lengths)
            optimizer.update(model, grads)
            return loss

        losses = []
        for _ in range(4):
            losses.append(step(*batch).item())
            mx.eval(state)
        mto.unpatch(model)
        return losses

    expected = train(is_patched=False)
    assert expected[-1] < expected[0] - 0.1
    assert np.allclose(train(is_patched=True), expected, atol=2e-3)
    # A trace has 18 calls, and the first step, whose optimizer is new, has a trace of its own.
    assert (mto.report().total_fused, mto.report().total_fallbacks) == (36, 0)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_lora_step_in_16_bits(batch, dtype):
    exact = with_adapters(tiny_llama())
    loss, grads = loss_and_grads(exact, batch)
    model = with_adapters(tiny_llama(dtype=dtype))
    with mto.patched(model):
        patched_loss, patched_grads = loss_and_grads(model, batch)
    assert abs(patched_loss.item() - loss.item()) < 0.05
    for name, gradient in grads.items():
        difference = mx.linalg.norm(patched_grads[name].astype(mx.float32) - gradient)
        assert difference.item() < 0.1 * mx.linalg.norm(gradient).item(), name
    assert mto.report().total_fallbacks == 0
