"""SmolLM2-135M, patched, and through linears that cost nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache

import mlx.core as mx
import mlx.nn as nn
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache

import mlx_tensorops as mto
from benchmarks.harness import ROOT, Benchmark, Case, Contestant
from mlx_tensorops.io import convert_gguf, load_gguf

sys.path.append(str(ROOT.parent / "demo"))
from model_package import cache_dir, fetch_gguf  # noqa: E402

PROMPT, DECODED = 512, 32


def benchmarks() -> Iterator[Case]:
    """Reading a prompt, and writing behind a short one and a long one, for each dtype of scales."""
    for dtype in ("float32", "bfloat16", "float16"):
        for phase, context in (("prefill", PROMPT), ("decode", 16), ("decode", PROMPT)):
            case = {"dtype": dtype, "phase": phase, "context": context}
            yield Case(case, lambda case=case: make(case))


def make(case: dict) -> Benchmark:
    """One model, patched, or with linears that only repeat a value of their input."""
    dtype, phase, context = case.values()
    model = load_model(dtype)
    tokens = mx.array([[(i * 7919) % 40000 for i in range(context)]])
    run = prefill if phase == "prefill" else Decoder(model, tokens).run

    stored = load_stored(dtype)
    run_stored = prefill if phase == "prefill" else Decoder(stored, tokens).run

    def patched(_: int) -> None:
        with mto.patched(model):
            run(model, tokens)

    def as_stored(_: int) -> None:
        with mto.patched(stored):
            run_stored(stored, tokens)

    return Benchmark(
        op="smollm2",
        case=case,
        contestants=[
            Contestant("patched", patched),
            Contestant("GGUF blocks as stored", as_stored),
            Contestant("free linears", lambda _: with_free_linears(lambda: run(model, tokens))),
        ],
        n_tokens=PROMPT if phase == "prefill" else DECODED,
        facts={"decoded": DECODED},
    )


@cache
def load_model(dtype: str) -> nn.Module:
    """The demo's model, converted with scales of `dtype`."""
    folder = cache_dir() / f"smollm2-q4-{dtype}"
    convert_gguf(fetch_gguf(cache_dir()), folder, dtype=dtype)
    return load(str(folder))[0]


@cache
def load_stored(dtype: str) -> nn.Module:
    """The same model with the weights in the file's blocks of Q4_1 and Q8_0."""
    return load_gguf(fetch_gguf(cache_dir()), dtype=dtype)[0]


def prefill(model: nn.Module, tokens: mx.array) -> None:
    """All tokens at once."""
    mx.eval(model(tokens, cache=make_prompt_cache(model))[:, -1])


class Decoder:
    """Token by token behind a context that was read once."""

    def __init__(self, model: nn.Module, tokens: mx.array) -> None:
        self.state = make_prompt_cache(model)
        with mto.patched(model):
            self.first = mx.argmax(model(tokens, cache=self.state)[:, -1:], axis=-1)
            mx.eval(self.first)

    def run(self, model: nn.Module, _: mx.array) -> None:
        """The next step is under way while one is waited for, as mlx-lm does."""

        def step(token: mx.array) -> mx.array:
            return mx.argmax(model(token, cache=self.state)[:, -1:], axis=-1)

        token = self.first
        for _ in range(DECODED):
            following = step(token)
            mx.async_eval(following)
            mx.eval(token)
            token = following
        mx.eval(token)
        trim_prompt_cache(self.state, DECODED)


def with_free_linears(run: Callable[[], None]) -> None:
    """Run with quantized linears and the tied head replaced by a view of their input."""

    def view(module: nn.Module, x: mx.array) -> mx.array:
        return mx.broadcast_to(x[..., :1], (*x.shape[:-1], module.weight.shape[0]))

    linear, head = nn.QuantizedLinear.__call__, nn.QuantizedEmbedding.as_linear
    nn.QuantizedLinear.__call__ = nn.QuantizedEmbedding.as_linear = view
    try:
        run()
    finally:
        nn.QuantizedLinear.__call__, nn.QuantizedEmbedding.as_linear = linear, head
