"""The tokenizer of a converted folder against byte-level BPE written from its definition."""

import mlx_lm
import numpy as np
import pytest
from byte_pair import encode
from tiny_gguf import METADATA, TOKENS, write_gguf

from mlx_tensorops.io import convert_gguf
from mlx_tensorops.io.tokenizer import build_tokenizer

TEXTS = [
    "",
    " ",
    "the and the",
    "then  and   in \n\n  the\tend ",
    "In 1492, 3.14159 or 007 & \u00bd \u00b2 \u0663",
    "it's we'll they'VE I'd",
    "na\u00efve caf\u00e9 \u2014 \u201cquotes\u201d \u2026 "
    "\u6f22\u5b57\u304b\u306a \ud55c\uad6d\uc5b4 "
    "\U0001f642\U0001f469\u200d\U0001f469\u200d\U0001f467 \u200b\ufeff",
    "<|im_start|>user\nthe<|im_end|>\n<tool> the <tool>x<|endoftext|>",
    "def f(x):\n    return x ** 2  # in the\r\n",
    "\x00\x7f\x80\u00ff",
]


@pytest.mark.parametrize("pre", ["smollm", "gpt-2"])
def test_ids_are_those_of_the_definition(pre):
    metadata = METADATA | {"tokenizer.ggml.pre": pre}
    tokenizer = build_tokenizer(metadata)
    for text in TEXTS:
        assert tokenizer.encode(text).ids == encode(text, metadata), repr(text)


@pytest.mark.parametrize("pre", ["smollm", "gpt-2"])
def test_random_texts(pre):
    metadata = METADATA | {"tokenizer.ggml.pre": pre}
    tokenizer = build_tokenizer(metadata)
    rng = np.random.default_rng(11)
    spaced = "  the and in 0123456789 ' s \n\t.,\u00e9\u6f22"
    letters = [*spaced, "<|im_end|>", "<tool>", " ", "the"]
    for _ in range(300):
        text = "".join(rng.choice(letters, rng.integers(1, 40)))
        ids = tokenizer.encode(text).ids
        assert ids == encode(text, metadata), repr(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_two_ways_to_cut_text_differ_at_digits():
    metadata = METADATA | {"tokenizer.ggml.pre": "gpt-2"}
    metadata["tokenizer.ggml.tokens"] = [*TOKENS, "12"]
    metadata["tokenizer.ggml.token_type"] = [*METADATA["tokenizer.ggml.token_type"], 1]
    metadata["tokenizer.ggml.merges"] = [*METADATA["tokenizer.ggml.merges"], "1 2"]
    assert len(build_tokenizer(metadata).encode("12").ids) == 1
    metadata["tokenizer.ggml.pre"] = "smollm"
    assert len(build_tokenizer(metadata).encode("12").ids) == 2


@pytest.mark.parametrize(
    ("bos", "eos"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_begin_and_end_tokens_are_added_as_the_file_says(tmp_path, bos, eos):
    flags = {"tokenizer.ggml.add_bos_token": bos, "tokenizer.ggml.add_eos_token": eos}
    path = write_gguf(tmp_path / "m.gguf", metadata=flags)
    convert_gguf(path, tmp_path / "out")
    _, tokenizer = mlx_lm.load(str(tmp_path / "out"))
    plain = encode("in the", METADATA)
    assert tokenizer.encode("in the") == [1] * bos + plain + [2] * eos
    assert tokenizer.encode("in the", add_special_tokens=False) == plain


def test_the_folder_has_the_chat_template_and_the_special_tokens(tmp_path):
    convert_gguf(write_gguf(tmp_path / "m.gguf"), tmp_path / "out")
    _, tokenizer = mlx_lm.load(str(tmp_path / "out"))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (1, 2, 0)
    assert tokenizer.pad_token_id == 2 and tokenizer.model_max_length == 256
    message = [{"role": "user", "content": "in the"}]
    ids = tokenizer.apply_chat_template(message, add_generation_prompt=True)
    expected = "<|im_start|>user\nin the<|im_end|>\n<|im_start|>assistant\n"
    assert ids == encode(expected, METADATA)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "user\nin the\nassistant\n"
    detokenizer = tokenizer.detokenizer
    for i in encode("the na\u00efve \u6f22\u5b57 end", METADATA):
        detokenizer.add_token(i)
    detokenizer.finalize()
    assert detokenizer.text == "the na\u00efve \u6f22\u5b57 end"


def test_a_file_without_a_chat_template_gives_a_tokenizer_without_one(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", metadata={"tokenizer.chat_template": None})
    convert_gguf(path, tmp_path / "out")
    _, tokenizer = mlx_lm.load(str(tmp_path / "out"))
    assert not tokenizer.has_chat_template


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, r"model must be 'gpt2' \(byte-level BPE\), got 'llama'."),
        ({"pre": "llama-bpe"}, "pre must be one of 'gpt-2', 'smollm', got 'llama-bpe'."),
        ({"pre": None}, "metadata must have 'tokenizer.ggml.pre'"),
        ({"merges": ["x y"]}, "merges must join two tokens to a third, got 'x y'."),
        ({"merges": ["the"]}, "merges must join two tokens to a third, got 'the'."),
        ({"merges": 3}, "merges must be an array of strings, got 3."),
        ({"tokens": [*TOKENS[:-1], "a"]}, "tokens must be distinct, got 267 .* among 268."),
        ({"token_type": [1, 1]}, r"token_type must have one entry a token, got \[1, 1\]."),
        ({"add_space_prefix": True}, "add_space_prefix must be false, got true."),
        ({"add_bos_token": 1}, "add_bos_token must be a boolean, got 1."),
        ({"add_bos_token": True, "bos_token_id": None}, "bos_token_id' where add_bos_token is set"),
        ({"eos_token_id": None}, "metadata must have 'tokenizer.ggml.eos_token_id'"),
        ({"eos_token_id": 268}, "eos_token_id must be a token from 0 to 267, got 268."),
        ({"padding_token_id": 4000000000}, "padding_token_id must be a token from 0 to 267"),
    ],
)
def test_what_is_not_supported_is_refused(tmp_path, changes, message):
    metadata = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    path = write_gguf(tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(ValueError, match=message):
        convert_gguf(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
