"""One LoRA step of SmolLM2-135M at sequence 1024, patched and not: loss, gradients, time, memory.

`python benchmarks/lora_step.py`: each in a process of its own. Without the patch a step takes
minutes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import typer
from mlx.utils import tree_flatten

# Behind the installed package: the source tree has no compiled part.
sys.path.append(str(Path(__file__).parent.parent))

LORA = {"rank": 8, "scale": 20.0, "dropout": 0.0, "keys": ["self_attn.q_proj", "self_attn.v_proj"]}
LAYERS = 16


def step(length: int, patched: bool, gradients: Path) -> dict[str, float]:
    """Loss and seconds; peaks of MLX's arrays, and of this process beyond before, in GB."""
    from mlx_lm.tuner.trainer import default_loss
    from mlx_lm.tuner.utils import linear_to_lora_layers

    import mlx_tensorops as mto
    from benchmarks.ops.bench_smollm2 import load_model

    mx.set_default_device(mx.cpu)
    model = load_model("float32")
    model.freeze()
    mx.random.seed(0)
    linear_to_lora_layers(model, LAYERS, LORA)
    for _, module in model.named_modules():
        if "lora_b" in module:
            module.lora_b = 0.01 * mx.random.normal(module.lora_b.shape)
    mx.eval(model.parameters())
    if patched:
        mto.patch(model)
    tokens = mx.array([[(i * 7919 + i * i * 31) % 40000 for i in range(length + 1)]])
    lengths = mx.array([[0, length]])
    Path("/proc/self/clear_refs").write_text("5")
    mx.reset_peak_memory()
    before, begin = held("VmRSS"), time.perf_counter()
    (loss, _), grads = nn.value_and_grad(model, default_loss)(model, tokens, lengths)
    mx.eval(loss, grads)
    seconds = time.perf_counter() - begin
    memory = held("VmHWM") - before
    np.savez(gradients, **{name: np.array(a) for name, a in tree_flatten(grads)})
    peak = mx.get_peak_memory() / 1e9
    return {"loss": loss.item(), "seconds": seconds, "arrays_gb": peak, "extra_gb": memory}


def held(name: str) -> float:
    """A line of what the kernel says of this process's memory, in GB."""
    line = re.search(name + r":\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert line
    return int(line[1]) * 1024 / 1e9


def main(
    length: Annotated[int, typer.Option(help="Tokens in the row.")] = 1024,
    child: Annotated[str, typer.Option(hidden=True)] = "",
    gradients: Annotated[Path, typer.Option(hidden=True)] = Path(),
) -> None:
    """Measure both, compare losses and gradients, and fail where they are apart."""
    if child:
        print(json.dumps(step(length, child == "patched", gradients)))
        return
    results, arrays = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("patched", "unpatched"):
            file = Path(folder) / f"{name}.npz"
            options = ["--length", str(length), "--child", name, "--gradients", str(file)]
            command = [sys.executable, __file__, *options]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            results[name] = json.loads(done.stdout.splitlines()[-1])
            arrays[name] = dict(np.load(file))
            print(name, json.dumps(results[name]), flush=True)
    apart = {
        name: float(np.abs(a - arrays["unpatched"][name]).max() / np.abs(a).max())
        for name, a in arrays["patched"].items()
    }
    worst = max(apart, key=lambda name: apart[name])
    loss = abs(results["patched"]["loss"] - results["unpatched"]["loss"])
    print(f"losses {loss:.2e} apart; gradients {apart[worst]:.2e} of the largest, in {worst}")
    if loss > 1e-4 or apart[worst] > 1e-2:
        raise SystemExit("the patched step is another step")


if __name__ == "__main__":
    typer.run(main)
