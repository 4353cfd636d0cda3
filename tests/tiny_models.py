"""Small models for tests that need a whole one: seeded, quantized, built in a moment."""

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama

VOCABULARY = 160


class TinyModel(nn.Module):
    """Embedding, two layers that share their linear, and a head tied to the embedding."""

    def __init__(self, bits: int = 4, group_size: int = 32, mode: str = "affine") -> None:
        super().__init__()
        width = 64 * (group_size // 32)
        options = {"bits": bits, "group_size": group_size, "mode": mode}
        self.embedding = nn.QuantizedEmbedding(VOCABULARY, width, **options)
        shared = nn.QuantizedLinear(width, width, **options)
        self.layers = [shared, nn.QuantizedLinear(width, width, bias=False, **options), shared]
        self.norm = nn.RMSNorm(width)

    def __call__(self, tokens: mx.array) -> mx.array:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = hidden + nn.silu(layer(hidden))
        return self.embedding.as_linear(self.norm(hidden))


def tiny_llama(
    quantization: Callable[[str, nn.Module], bool | dict] | dict | None = None,
    dtype: mx.Dtype = mx.float32,
    tied: bool = True,
    seed: int = 0,
    vocabulary: int = VOCABULARY,
) -> llama.Model:
    """A llama of two layers; ``quantization`` is a predicate of ``nn.quantize``, or its result."""
    mx.random.seed(seed)
    arguments = llama.ModelArgs(
        model_type="llama",
        hidden_size=128,
        num_hidden_layers=2,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
    )
    model = llama.Model(arguments)
    model.set_dtype(dtype)
    if quantization is None:
        quantization = {"bits": 4, "group_size": 32}

    def predicate(path: str, module: nn.Module) -> bool | dict:
        if not hasattr(module, "to_quantized"):
            return False
        return quantization(path, module) if callable(quantization) else dict(quantization)

    nn.quantize(model, class_predicate=predicate)
    mx.eval(model.parameters())
    return model


def mixed_bits(path: str, module: nn.Module) -> bool | dict:
    """More bits for the sensitive layers, as mlx-lm's mixed recipes do; one layer in mxfp4."""
    if "embed" in path:
        return {"bits": 8, "group_size": 64}
    if "v_proj" in path or "down_proj" in path:
        return {"bits": 6, "group_size": 32}
    if "layers.1.mlp.up_proj" in path:
        return {"bits": 4, "group_size": 32, "mode": "mxfp4"}
    return {"bits": 3, "group_size": 128}


def state_of(model: nn.Module) -> list[tuple[str, type, dict]]:
    """What patching may not change for good: path, class and attributes of every module."""
    return sorted(
        ((path, type(module), dict(vars(module))) for path, module in model.named_modules()),
        key=lambda entry: entry[0],
    )
