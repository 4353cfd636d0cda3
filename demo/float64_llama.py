"""A llama forward pass with every operation in float64, straight from a GGUF file.

The plainest form of the model, to measure others against: no cache, no fused operation, and rotary
pairs as GGUF stores them, so that not even the conversion is shared with what it judges.
"""

from collections.abc import Callable, Mapping

import numpy as np

from mlx_tensorops.io.blocks import GROUP_SIZE, Affine, decode
from mlx_tensorops.io.gguf import GGUFFile

Read = Callable[[str], np.ndarray]


def reader(file: GGUFFile) -> Read:
    """Give the exact values of a tensor by name: scale * code + bias in float64."""

    def read(name: str) -> np.ndarray:
        decoded = decode(file.tensors[name], file.raw(name))
        if not isinstance(decoded, Affine):
            return decoded.weight.astype(np.float64)
        codes = decoded.weight.view(np.uint8)
        if decoded.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], axis=-1)
        groups = codes.reshape(*decoded.scales.shape, GROUP_SIZE)
        values = decoded.scales[..., None].astype(np.float64) * groups
        values += decoded.biases[..., None]
        return values.reshape(values.shape[0], -1)

    return read


def rms_norm(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def rotate(x: np.ndarray, theta: float) -> np.ndarray:
    """Rotate elements 2i and 2i + 1 of ``[heads, length, d]`` by position * theta^(-2i/d)."""
    _, length, head_dim = x.shape
    angles = np.arange(length)[:, None] * theta ** (-np.arange(0, head_dim, 2) / head_dim)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def attention(x: np.ndarray, read: Read, n_heads: int, n_kv_heads: int, theta: float) -> np.ndarray:
    length = x.shape[0]

    def heads(name: str, n: int) -> np.ndarray:
        return (x @ read(name).T).reshape(length, n, -1).transpose(1, 0, 2)

    q = rotate(heads("attn_q", n_heads), theta)
    k = rotate(heads("attn_k", n_kv_heads), theta)
    v = heads("attn_v", n_kv_heads)
    k, v = (np.repeat(a, n_heads // n_kv_heads, axis=0) for a in (k, v))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    scores[:, ~np.tri(length, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ v).transpose(1, 0, 2).reshape(length, -1) @ read("attn_output").T


def feed_forward(x: np.ndarray, read: Read) -> np.ndarray:
    gate = x @ read("ffn_gate").T
    return gate / (1 + np.exp(-gate)) * (x @ read("ffn_up").T) @ read("ffn_down").T


def logits(
    read: Read,
    metadata: Mapping,
    tokens: list[int],
    *,
    tied: bool = True,
    on_layer: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Compute the logits of every position.

    Args:
        read: Gives a tensor of the file by its name.
        metadata: The file's metadata.
        tokens: The prompt.
        tied: Whether the output head is the token embedding.
        on_layer: Called with the number of layers done and their total.

    Returns:
        ``[len(tokens), vocabulary]``, float64.
    """
    n_layers = metadata["llama.block_count"]
    heads = [metadata[f"llama.attention.head_count{suffix}"] for suffix in ("", "_kv")]
    epsilon = metadata["llama.attention.layer_norm_rms_epsilon"]
    theta = metadata["llama.rope.freq_base"]
    embedding = read("token_embd.weight")
    x = embedding[tokens].astype(np.float64)
    for i in range(n_layers):

        def read_layer(name: str, i: int = i) -> np.ndarray:
            return read(f"blk.{i}.{name}.weight").astype(np.float64, copy=False)

        normed = rms_norm(x, read_layer("attn_norm"), epsilon)
        x = x + attention(normed, read_layer, *heads, theta)
        normed = rms_norm(x, read_layer("ffn_norm"), epsilon)
        x = x + feed_forward(normed, read_layer)
        if on_layer:
            on_layer(i + 1, n_layers)
    head = embedding if tied else read("output.weight")
    return rms_norm(x, read("output_norm.weight"), epsilon) @ head.T
