"""Load an mlx-lm model folder, generate text, and measure how fast."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_tensorops.cli.demo_extra import import_demo


@dataclass(frozen=True)
class Speed:
    """What one generation took.

    Attributes:
        n_prompt: Tokens of the prompt.
        n_generated: Tokens generated, the end token included.
        prefill_s: From the start to the first token.
        decode_s: From the first token to the last.
        peak_bytes: Most memory that MLX held at a time.
    """

    n_prompt: int
    n_generated: int
    prefill_s: float
    decode_s: float
    peak_bytes: int

    @property
    def prefill_tps(self) -> float:
        """Prompt tokens a second."""
        return self.n_prompt / self.prefill_s

    @property
    def decode_tps(self) -> float:
        """Tokens a second after the first one, 0 when there is only one."""
        return (self.n_generated - 1) / self.decode_s if self.decode_s else 0.0


def load(folder: Path) -> tuple[Any, Any]:
    """Load a model and its tokenizer.

    Args:
        folder: An mlx-lm model folder, or a GGUF file.

    Returns:
        The model and the tokenizer.

    Raises:
        ValueError: It is neither.
        RuntimeError: mlx-lm is missing.
    """
    if folder.is_file():
        import_demo("mlx_lm")
        model: tuple[Any, Any] = import_demo("mlx_tensorops.io").load_gguf(folder)
        return model
    if not (folder / "config.json").is_file():
        raise ValueError(f"[generate] model must be a folder with a config.json, got '{folder}'.")
    mlx_lm = import_demo("mlx_lm")
    try:
        loaded: tuple[Any, Any] = mlx_lm.load(str(folder))
    except Exception as error:
        # mlx-lm and the tokenizer library have no error class of their own for a bad folder.
        raise ValueError(
            f"[generate] model must be a folder that mlx-lm can load, got '{folder}' "
            f"({type(error).__name__}: {error})."
        ) from error
    return loaded


def encode_prompt(tokenizer: Any, prompt: str, *, chat: bool) -> list[int]:
    """Turn a prompt into tokens.

    Args:
        tokenizer: From ``load``.
        prompt: The text.
        chat: Wrap it as a user's message in the model's chat template, where it has one.

    Returns:
        The tokens.

    Raises:
        ValueError: There are none.
    """
    if chat and tokenizer.has_chat_template:
        messages = [{"role": "user", "content": prompt}]
        tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    else:
        tokens = tokenizer.encode(prompt)
    if not tokens:
        raise ValueError(f"[generate] prompt must have at least one token, got {prompt!r}.")
    return list(tokens)


def _prefill_step() -> int:
    # Steps large enough to be fast, and on a CPU small enough to see them pass.
    return 256 if mx.default_device() == mx.Device(mx.cpu) else 2048


class Generation:
    """One run of a model: ``prefill``, then ``texts``, then ``speed``."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        tokens: list[int],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        sampler = import_demo("mlx_lm.sample_utils").make_sampler(temp=temperature)
        self._n_prompt = len(tokens)
        self._responses = import_demo("mlx_lm").stream_generate(
            model,
            tokenizer,
            tokens,
            max_tokens=max_tokens,
            sampler=sampler,
            prefill_step_size=_prefill_step(),
            prompt_progress_callback=on_progress,
        )

    def prefill(self) -> None:
        """Read the prompt, up to the first token."""
        mx.reset_peak_memory()
        self._start = time.perf_counter()
        self._last = next(self._responses)
        self._first_at = self._last_at = time.perf_counter()

    def texts(self) -> Iterator[str]:
        """Generate the other tokens and give the text as it grows."""
        yield self._last.text
        for response in self._responses:
            self._last, self._last_at = response, time.perf_counter()
            yield response.text

    def speed(self) -> Speed:
        """Say what the run took; to be called at its end."""
        return Speed(
            n_prompt=self._n_prompt,
            n_generated=self._last.generation_tokens,
            prefill_s=self._first_at - self._start,
            decode_s=self._last_at - self._first_at,
            peak_bytes=mx.get_peak_memory(),
        )
