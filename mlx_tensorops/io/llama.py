"""What a GGUF of the ``llama`` architecture becomes as an mlx-lm ``llama`` model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mlx_tensorops.io.blocks import DENSE_TYPES
from mlx_tensorops.io.gguf import Tensor
from mlx_tensorops.io.metadata import integer, number, optional_integer

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True)
class Target:
    """Where one GGUF tensor goes.

    Attributes:
        path: The mlx-lm module that owns it as its ``weight``.
        shape: The shape that it must have.
        n_heads: How many heads its rows are split into, 0 when their order stays.
    """

    path: str
    shape: tuple[int, ...]
    n_heads: int = 0


def read_config(metadata: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
    """Translate the hyperparameters.

    Args:
        metadata: The GGUF metadata.
        vocab_size: Tokens in the vocabulary.

    Returns:
        The entries of mlx-lm's ``config.json`` that describe the model's shape.

    Raises:
        ValueError: Metadata is missing, or asks for what mlx-lm's llama model does not compute.
    """
    hidden_size = integer(metadata, "llama.embedding_length")
    n_heads = integer(metadata, "llama.attention.head_count")
    n_kv_heads = optional_integer(metadata, "llama.attention.head_count_kv", n_heads)
    if n_heads > hidden_size:
        raise ValueError(
            "[convert] llama.attention.head_count must be at most embedding_length, "
            f"got {n_heads} and {hidden_size}."
        )
    if n_heads % n_kv_heads:
        raise ValueError(
            "[convert] llama.attention.head_count must be a multiple of head_count_kv, "
            f"got {n_heads} and {n_kv_heads}."
        )
    head_dim = optional_integer(metadata, "llama.attention.key_length", hidden_size // n_heads)
    _refuse_variants(metadata, head_dim)
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "num_hidden_layers": integer(metadata, "llama.block_count"),
        "intermediate_size": integer(metadata, "llama.feed_forward_length"),
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": number(metadata, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": number(metadata, "llama.rope.freq_base", 10000.0),
        "max_position_embeddings": integer(metadata, "llama.context_length"),
        "vocab_size": vocab_size,
    }


def _refuse_variants(metadata: Mapping[str, Any], head_dim: int) -> None:
    if head_dim % 2:
        raise ValueError(f"[convert] llama.attention.key_length must be even, got {head_dim}.")
    for key, rule, needed in (
        ("llama.attention.value_length", f"be the key length, {head_dim}", head_dim),
        ("llama.rope.dimension_count", f"be the key length, {head_dim}", head_dim),
        ("llama.expert_count", "be 0 (no mixture of experts)", 0),
        ("llama.rope.scaling.type", "be 'none'", "none"),
        ("split.count", "be 1 (a file that is not split)", 1),
    ):
        if metadata.get(key, needed) != needed:
            raise ValueError(f"[convert] {key} must {rule}, got {metadata[key]!r}.")


def targets(config: Mapping[str, Any]) -> dict[str, Target]:
    """List every tensor that the model has.

    Args:
        config: What ``read_config`` returned, and ``tie_word_embeddings``.

    Returns:
        GGUF tensor name to its target.
    """
    hidden, ffn, head_dim = (config[k] for k in ("hidden_size", "intermediate_size", "head_dim"))
    n_heads, n_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    q_rows, kv_rows = n_heads * head_dim, n_kv_heads * head_dim
    table = {
        "token_embd": Target("model.embed_tokens", (config["vocab_size"], hidden)),
        "output_norm": Target("model.norm", (hidden,)),
    }
    if not config["tie_word_embeddings"]:
        table["output"] = Target("lm_head", (config["vocab_size"], hidden))
    layer = {
        "attn_norm": Target("input_layernorm", (hidden,)),
        "attn_q": Target("self_attn.q_proj", (q_rows, hidden), n_heads),
        "attn_k": Target("self_attn.k_proj", (kv_rows, hidden), n_kv_heads),
        "attn_v": Target("self_attn.v_proj", (kv_rows, hidden)),
        "attn_output": Target("self_attn.o_proj", (hidden, q_rows)),
        "ffn_norm": Target("post_attention_layernorm", (hidden,)),
        "ffn_gate": Target("mlp.gate_proj", (ffn, hidden)),
        "ffn_up": Target("mlp.up_proj", (ffn, hidden)),
        "ffn_down": Target("mlp.down_proj", (hidden, ffn)),
    }
    for i in range(config["num_hidden_layers"]):
        for name, target in layer.items():
            path = f"model.layers.{i}.{target.path}"
            table[f"blk.{i}.{name}"] = Target(path, target.shape, target.n_heads)
    return {f"{name}.weight": target for name, target in table.items()}


def check_tensors(tensors: Mapping[str, Tensor], table: Mapping[str, Target]) -> None:
    """Check that a file holds exactly the tensors of the model.

    Args:
        tensors: The file's tensor table.
        table: What ``targets`` returned.

    Raises:
        ValueError: A tensor is missing, unknown, or of another shape or type than the model needs.
    """
    for name in tensors:
        if name not in table:
            raise ValueError(
                f"[convert] tensors must be those of a plain llama model, got {name!r} too."
            )
    for name, target in table.items():
        if name not in tensors:
            raise ValueError(f"[convert] tensors must include {name!r}, got a file without it.")
        tensor = tensors[name]
        if tensor.shape != target.shape:
            raise ValueError(
                f"[convert] {name} must have shape {target.shape}, got {tensor.shape}."
            )
        if len(tensor.shape) == 1 and tensor.type not in DENSE_TYPES:
            raise ValueError(
                f"[convert] {name} must be one of {', '.join(DENSE_TYPES)}, got {tensor.type}."
            )


def restore_row_order(rows: NDArray[_Scalar], n_heads: int) -> NDArray[_Scalar]:
    """Undo the row permutation of llama GGUFs.

    GGUF stores the rows of q and k so that rotary pairs are neighbours; mlx-lm's llama rotates the
    first half of a head against the second. Whole rows move, so packed codes, scales and biases
    are permuted alike and stay exact.

    Args:
        rows: ``[n_heads * head_dim, ...]``.
        n_heads: Heads in ``rows``.

    Returns:
        The same shape, rows in mlx-lm's order.
    """
    rest = rows.shape[1:]
    pairs = rows.reshape(n_heads, rows.shape[0] // n_heads // 2, 2, *rest)
    restored: NDArray[_Scalar] = pairs.swapaxes(1, 2).reshape(rows.shape)
    return restored
