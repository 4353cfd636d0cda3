"""Build the tokenizer files of an mlx-lm model folder from GGUF metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from mlx_tensorops.io.metadata import flag, text, texts, token_id

_CONTROL, _USER_DEFINED = 3, 4

_SPECIAL_TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def _gpt2_split() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm_split() -> Any:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _gpt2_split()])


# How text is cut before byte pairs merge, by the name in `tokenizer.ggml.pre`. Every name has its
# own pattern, and a wrong one gives wrong tokens without any error, so other names are refused.
_PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "gpt-2": _gpt2_split,
    "smollm": _smollm_split,
}


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the byte-level BPE tokenizer that the metadata describes.

    Args:
        metadata: The GGUF metadata.

    Returns:
        The tokenizer.

    Raises:
        ValueError: Metadata is missing or inconsistent, or names an unsupported tokenizer.
    """
    model = text(metadata, "tokenizer.ggml.model")
    if model != "gpt2":
        raise ValueError(
            f"[convert] tokenizer.ggml.model must be 'gpt2' (byte-level BPE), got {model!r}."
        )
    pre = text(metadata, "tokenizer.ggml.pre")
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(repr(name) for name in _PRE_TOKENIZERS)
        raise ValueError(f"[convert] tokenizer.ggml.pre must be one of {known}, got {pre!r}.")
    if flag(metadata, "tokenizer.ggml.add_space_prefix"):
        raise ValueError("[convert] tokenizer.ggml.add_space_prefix must be false, got true.")
    tokens = texts(metadata, "tokenizer.ggml.tokens")
    tokenizer = Tokenizer(_byte_pair_model(tokens, texts(metadata, "tokenizer.ggml.merges")))
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _post_processor(metadata, tokens)
    whole: dict[int, list[AddedToken]] = {_CONTROL: [], _USER_DEFINED: []}
    for token, kind in zip(tokens, _token_types(metadata, len(tokens)), strict=True):
        if kind in whole:
            is_special = kind == _CONTROL
            whole[kind].append(AddedToken(token, normalized=False, special=is_special))
    tokenizer.add_special_tokens(whole[_CONTROL])
    tokenizer.add_tokens(whole[_USER_DEFINED])
    return tokenizer


def _byte_pair_model(tokens: list[str], merges: list[str]) -> Any:
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ValueError(
            "[convert] tokenizer.ggml.tokens must be distinct, "
            f"got {len(vocabulary)} different ones among {len(tokens)}."
        )
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= vocabulary.keys():
            raise ValueError(
                f"[convert] tokenizer.ggml.merges must join two tokens to a third, got {merge!r}."
            )
        pairs.append((left, right))
    return models.BPE(vocab=vocabulary, merges=pairs, fuse_unk=False)


def _token_types(metadata: Mapping[str, Any], n_tokens: int) -> list[int]:
    types = metadata.get("tokenizer.ggml.token_type", [1] * n_tokens)
    if not isinstance(types, list) or len(types) != n_tokens:
        raise ValueError(
            f"[convert] tokenizer.ggml.token_type must have one entry a token, got {types!r:.60}."
        )
    return types


def _post_processor(metadata: Mapping[str, Any], tokens: list[str]) -> Any:
    """Byte-level offsets, and the begin and end tokens where the file asks for them."""
    template, special = ["$A"], []
    for key, place in (("bos", 0), ("eos", 2)):
        if not flag(metadata, f"tokenizer.ggml.add_{key}_token"):
            continue
        i = token_id(metadata, f"tokenizer.ggml.{key}_token_id", len(tokens))
        if i is None:
            raise ValueError(
                f"[convert] metadata must have 'tokenizer.ggml.{key}_token_id' where "
                f"add_{key}_token is set, got a file without it."
            )
        template.insert(place, tokens[i])
        special.append((tokens[i], i))
    byte_level = processors.ByteLevel(trim_offsets=False)
    if not special:
        return byte_level
    return processors.Sequence(
        [byte_level, processors.TemplateProcessing(single=template, special_tokens=special)]
    )


def special_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the begin and end tokens as ``config.json`` and ``generation_config.json`` have them.

    Args:
        metadata: The GGUF metadata.

    Returns:
        ``bos_token_id`` where there is one, and ``eos_token_id``: a list when the file names a
        token that ends a turn beside the one that ends a text.

    Raises:
        ValueError: There is no end token, or an id is outside the vocabulary.
    """
    n_tokens = len(texts(metadata, "tokenizer.ggml.tokens"))
    ids: dict[str, Any] = {}
    bos = token_id(metadata, "tokenizer.ggml.bos_token_id", n_tokens)
    if bos is not None:
        ids["bos_token_id"] = bos
    eos = token_id(metadata, "tokenizer.ggml.eos_token_id", n_tokens)
    if eos is None:
        raise ValueError(
            "[convert] metadata must have 'tokenizer.ggml.eos_token_id', got a file without it."
        )
    end_of_turn = token_id(metadata, "tokenizer.ggml.eot_token_id", n_tokens)
    ids["eos_token_id"] = eos if end_of_turn in (None, eos) else [eos, end_of_turn]
    return ids


def write_tokenizer(metadata: Mapping[str, Any], max_length: int, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``.

    Args:
        metadata: The GGUF metadata.
        max_length: The context length.
        folder: Where to write.

    Raises:
        ValueError: As ``build_tokenizer``.
    """
    # Not with Tokenizer.save: it reports a full disk as a plain Exception.
    content = build_tokenizer(metadata).to_str(pretty=True)
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    tokens = texts(metadata, "tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    for name, key in _SPECIAL_TOKENS.items():
        i = token_id(metadata, key, len(tokens))
        if i is not None:
            config[name] = tokens[i]
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = text(metadata, "tokenizer.chat_template")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
