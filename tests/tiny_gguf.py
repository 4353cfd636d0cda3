"""Small random GGUF files of the llama architecture, written with the PyPI package gguf."""

from pathlib import Path

import gguf
import numpy as np
from ggml_blocks import random_blocks
from tokenizers import pre_tokenizers

HIDDEN, FFN, N_LAYERS, N_HEADS, N_KV_HEADS = 64, 96, 2, 4, 2
HEAD_DIM = HIDDEN // N_HEADS
MERGES = [
    "\u0120 t",
    "h e",
    "\u0120t he",
    "i n",
    "\u0120 a",
    "\u0120a n",
    "\u0120an d",
    "\u0120 \u0120",
]
TOKENS = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"),
    *sorted(pre_tokenizers.ByteLevel.alphabet()),
    *(merge.replace(" ", "") for merge in MERGES),
]
CONTROL, USER_DEFINED, NORMAL = 3, 4, 1
TOKEN_TYPES = [CONTROL] * 3 + [USER_DEFINED] + [NORMAL] * (len(TOKENS) - 4)
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

DECODED_ONLY = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL")

METADATA = {
    "llama.block_count": N_LAYERS,
    "llama.context_length": 256,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": FFN,
    "llama.attention.head_count": N_HEADS,
    "llama.attention.head_count_kv": N_KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 5000.0,
    "llama.rope.dimension_count": HEAD_DIM,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.token_type": TOKEN_TYPES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": CHAT_TEMPLATE,
}

SHAPES = {"token_embd": (len(TOKENS), HIDDEN), "output_norm": (HIDDEN,)}
for _i in range(N_LAYERS):
    SHAPES |= {
        f"blk.{_i}.attn_norm": (HIDDEN,),
        f"blk.{_i}.attn_q": (N_HEADS * HEAD_DIM, HIDDEN),
        f"blk.{_i}.attn_k": (N_KV_HEADS * HEAD_DIM, HIDDEN),
        f"blk.{_i}.attn_v": (N_KV_HEADS * HEAD_DIM, HIDDEN),
        f"blk.{_i}.attn_output": (HIDDEN, N_HEADS * HEAD_DIM),
        f"blk.{_i}.ffn_norm": (HIDDEN,),
        f"blk.{_i}.ffn_gate": (FFN, HIDDEN),
        f"blk.{_i}.ffn_up": (FFN, HIDDEN),
        f"blk.{_i}.ffn_down": (HIDDEN, FFN),
    }

LAYER_MATRICES = [name for name in SHAPES if name.startswith("blk.") and "norm" not in name]
PROMPT = [1, 40, 77, 4, 200, 9, 9, 31]


def write_gguf(
    path: Path,
    *,
    seed: int = 0,
    architecture: str = "llama",
    metadata: dict | None = None,
    types: dict[str, str] | None = None,
    shapes: dict | None = None,
) -> Path:
    """Write a model of random weights.

    Args:
        path: Where to.
        seed: Of the weights.
        architecture: general.architecture.
        metadata: Overrides of METADATA; None removes a key.
        types: GGUF type by tensor (without ".weight"), where it is not F32 for vectors, Q8_0 for
            the embedding and Q4_1 for the rest.
        shapes: Overrides of SHAPES; None removes a tensor.
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (METADATA | (metadata or {})).items():
        if value is not None:
            add_value(writer, key, value)
    for name, shape in (SHAPES | (shapes or {})).items():
        if shape is None:
            continue
        values = rng.standard_normal(shape, np.float32) * np.float32(0.3)
        default = "F32" if len(shape) == 1 else "Q8_0" if name == "token_embd" else "Q4_1"
        add_tensor(writer, f"{name}.weight", values, (types or {}).get(name, default), rng)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    """Add metadata with the type that its Python value suggests."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def add_tensor(
    writer: gguf.GGUFWriter,
    name: str,
    values: np.ndarray,
    type_name: str,
    rng: np.random.Generator,
) -> None:
    """Add a tensor, encoded by the gguf package, or of random blocks of a type it cannot encode."""
    kind = gguf.GGMLQuantizationType[type_name]
    if type_name in ("F32", "F16"):
        writer.add_tensor(name, values.astype(np.float32 if type_name == "F32" else np.float16))
    elif type_name in DECODED_ONLY:
        octets = random_blocks(type_name.lower(), values.shape, rng, magnitude=0.5)
        writer.add_tensor(name, octets, raw_dtype=kind)
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def exact_values(path: Path) -> dict[str, np.ndarray]:
    """Decode every tensor to float32 with the gguf package."""
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        for tensor in gguf.GGUFReader(path).tensors
    }
