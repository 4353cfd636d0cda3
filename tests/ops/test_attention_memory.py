"""Memory of attention grows with the lengths, not with their product (R31)."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# The peak of what a process holds, above what it held before, in MiB.
PROGRAM = """
import re
import mlx.core as mx
import mlx_tensorops as mto

mx.set_default_device(mx.cpu)
mx.set_cache_limit(0)

def held(name):
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

def attend(q, k, v, **options):
    return mto.scaled_dot_product_attention(q, k, v, scale=0.125, force_fused=True, **options)

def gradients(*arrays, **options):
    loss = lambda *a: mx.square(attend(*a, **options)).sum()
    return mx.grad(loss, argnums=tuple(range(3)))(*arrays)

def measured(run, length, **options):
    arrays = [mx.random.normal((1, 8, length, 64)) for _ in range(3)]
    mx.eval(arrays, attend(*(a[:, :, :64] for a in arrays)))
    open("/proc/self/clear_refs", "w").write("5")
    before = held("VmRSS")
    mx.eval(run(*arrays, **options))
    print(held("VmHWM") - before)

"""


def extra_mib(call: str, tmp_path) -> float:
    command = [sys.executable, "-c", PROGRAM + call]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_forward(tmp_path):
    """MLX takes 544 MiB; the output has 8."""
    assert extra_mib("measured(attend, 4096, mask='causal')", tmp_path) < 64


def test_documents_and_gradients(tmp_path):
    """MLX takes 1668 MiB, and has no documents but by a mask of 16 Mi elements."""
    options = "cu_seqlens=mx.array([0, 500, 1700, 2000, 4096]), mask='causal', window=900"
    assert extra_mib(f"measured(gradients, 4096, {options})", tmp_path) < 128


@pytest.mark.full
def test_gradients_of_8192(tmp_path):
    assert extra_mib("measured(gradients, 8192, mask='causal')", tmp_path) < 200
