"""A GGUF file as a model whose weights stay in the file's blocks."""

import gguf
import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from float64_llama import logits as exact_logits
from mlx.utils import tree_flatten
from tiny_gguf import (
    LAYER_MATRICES,
    METADATA,
    N_HEADS,
    N_KV_HEADS,
    PROMPT,
    SHAPES,
    exact_values,
    write_gguf,
)

import mlx_tensorops as mto
from mlx_tensorops.io import convert_gguf, load_gguf
from mlx_tensorops.io.llama import restore_row_order
from mlx_tensorops.layers import BlockEmbedding, BlockLinear

SMALL = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"]
LARGE = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0"]
# Rows of whole blocks of 256.
WIDE = {"llama.embedding_length": 256, "llama.feed_forward_length": 256}
WIDE |= {"llama.rope.dimension_count": 64}
KEPT = ("token_embd", "output_norm", "attn_norm", "ffn_norm")


def wide_shapes():
    changed = {}
    for name, shape in SHAPES.items():
        sizes = {64: 256, 96: 256, 32: 128}
        n_rows = shape[0] if name == "token_embd" else sizes[shape[0]]
        changed[name] = (n_rows, *(256 for _ in shape[1:]))
    return changed


def tiny(tmp_path, type_name):
    types = dict.fromkeys(LAYER_MATRICES, type_name) | {"token_embd": type_name}
    options = {"metadata": WIDE, "shapes": wide_shapes()} if type_name in LARGE else {}
    return write_gguf(tmp_path / "tiny.gguf", types=types, **options)


@pytest.mark.parametrize("type_name", SMALL + LARGE)
def test_logits_are_those_of_the_file(tmp_path, type_name):
    path = tiny(tmp_path, type_name)
    model, _ = load_gguf(path)
    mto.reset_report()
    actual = np.array(model(mx.array([PROMPT]))[0])
    ran = {(row.op, row.outcome) for row in mto.report().ops if "attention" not in row.op}
    assert ran == {("dequantize", "fused"), ("quantized_matmul", "fused")}
    metadata = METADATA | (WIDE if type_name in LARGE else {})
    expected = exact_logits(exact_values(path).__getitem__, metadata, PROMPT)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("type_name", ["Q4_1", "Q6_K"])
def test_bytes_are_those_of_the_file(tmp_path, type_name):
    path = tiny(tmp_path, type_name)
    model, _ = load_gguf(path)
    modules = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "ffn_up": "mlp.up_proj"}
    stored = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}
    heads = {"attn_q": N_HEADS, "attn_k": N_KV_HEADS, "ffn_up": 0}
    for name, module_path in modules.items():
        expected = stored[f"blk.1.{name}.weight"]
        if heads[name]:
            expected = restore_row_order(expected, heads[name])
        layer = dict(model.named_modules())[f"model.layers.1.{module_path}"]
        assert isinstance(layer, BlockLinear) and layer.mode == type_name.lower()
        np.testing.assert_array_equal(np.array(layer.weight), expected)
    assert isinstance(model.model.embed_tokens, BlockEmbedding)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dtype_of_the_activations(tmp_path, dtype):
    model, _ = load_gguf(tiny(tmp_path, "Q8_0"), dtype=dtype)
    assert model(mx.array([PROMPT])).dtype == getattr(mx, dtype)


def test_dense_tensors_stay_dense(tmp_path):
    path = write_gguf(tmp_path / "dense.gguf", types=dict.fromkeys(LAYER_MATRICES, "F16"))
    model, _ = load_gguf(path)
    expected = exact_logits(exact_values(path).__getitem__, METADATA, PROMPT)
    np.testing.assert_allclose(np.array(model(mx.array([PROMPT]))[0]), expected, atol=1e-4)


def test_patch_has_nothing_against_the_layers(tmp_path):
    model, _ = load_gguf(tiny(tmp_path, "Q5_1"))
    alone = model(mx.array([PROMPT]))
    with mto.patched(model, strict=True):
        assert not mto.report().left_alone
        patched = model(mx.array([PROMPT]))
    np.testing.assert_allclose(np.array(patched), np.array(alone), atol=1e-4)


def test_nothing_is_trainable_by_mistake(tmp_path):
    model, _ = load_gguf(tiny(tmp_path, "Q4_1"))
    names = [name for name, _ in tree_flatten(model.trainable_parameters())]
    assert names and all("norm" in name for name in names)


@pytest.mark.parametrize("dtype", ["float64", None])
def test_unknown_dtype(tmp_path, dtype):
    with pytest.raises(ValueError, match=r"^\[load_gguf\] dtype must be one of float32, "):
        load_gguf(tmp_path / "none.gguf", dtype=dtype)


def test_smollm2_writes_the_same_text(smollm2_gguf, tmp_path):
    """The real file, 210 matrices of Q4_1 and an embedding of Q8_0, beside its conversion."""
    convert_gguf(smollm2_gguf, tmp_path / "converted")
    prompt, texts = "The capital of France is", []
    for model, tokenizer in (
        load_gguf(smollm2_gguf),
        mlx_lm.load(str(tmp_path / "converted")),
    ):
        mto.reset_report()
        with mto.patched(model, strict=True):
            texts.append(mlx_lm.generate(model, tokenizer, prompt, max_tokens=12))
            assert {row.outcome for row in mto.report().ops} == {"fused"}
            assert not mto.report().total_fallbacks
    assert texts[0] == texts[1] and "Paris" in texts[0]
