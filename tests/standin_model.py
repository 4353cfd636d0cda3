"""A tiny quantized model that poses, in a Hub cache, as one that a suite would download."""

import json
from dataclasses import asdict
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from tiny_models import tiny_llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
REVISION = "0" * 40


def add_to_cache(hf_home: Path, name: str) -> None:
    """Put the model where the Hub's client looks for ``name`` when it is offline."""
    repository = hf_home / "hub" / f"models--{name.replace('/', '--')}"
    folder = repository / "snapshots" / REVISION
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)
    n_tokens = _save_tokenizer(folder)
    _save_model(folder, n_tokens)


def _save_tokenizer(folder: Path) -> int:
    """One token a byte, and the special ones."""
    tokens = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 4096,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return len(tokens)


def _save_model(folder: Path, n_tokens: int) -> None:
    model = tiny_llama(vocabulary=n_tokens)
    arguments = {name: value for name, value in asdict(model.args).items() if value is not None}
    config = arguments | {
        "eos_token_id": SPECIAL_TOKENS.index("<|im_end|>"),
        "quantization": {"bits": 4, "group_size": 32},
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
