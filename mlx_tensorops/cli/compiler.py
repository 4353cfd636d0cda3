"""Find out whether ``mx.compile`` works on the CPU."""

from __future__ import annotations

import subprocess
import sys

import mlx.core as mx

_PROGRAM = """
import mlx.core as mx
mx.set_default_device(mx.cpu)
gate = mx.compile(lambda x, y: x * mx.sigmoid(x) * y, shapeless=True)
for dtype in (mx.float32, mx.float16, mx.bfloat16):
    mx.eval(gate(mx.ones(8, dtype), mx.ones(8, dtype)))
"""


def compile_failure(timeout_s: float = 120.0) -> str:
    """Compile and run a small function in another process.

    MLX's CPU backend builds compiled functions with the system's g++ when they first run. Without
    g++ it runs them as they are; with one that cannot compile its headers it fails when an array
    is evaluated, too late to catch.

    Args:
        timeout_s: When to give up.

    Returns:
        Why it fails, in one line; empty when it works.
    """
    command = [sys.executable, "-c", _PROGRAM]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return f"no result after {timeout_s:g} s"
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    if not lines:
        return f"the process ended with {done.returncode}"
    # MLX quotes its command and then what the compiler wrote; the compiler's first error explains.
    explanation = next((line for line in lines if ": error:" in line), lines[-1])
    return explanation.rpartition("the output is: ")[2][:200]


def make_compile_safe() -> str:
    """Turn ``mx.compile`` off in this process where it does not work.

    Returns:
        What to tell the user, empty when there is nothing to tell.
    """
    if mx.default_device() != mx.Device(mx.cpu):
        return ""
    reason = compile_failure()
    if not reason:
        return ""
    mx.disable_compile()
    return f"mx.compile does not work here, going on without it: {reason}"
