"""What the tests of matmul2d share."""

import re

import numpy as np
import pytest

from mlx_tensorops.testing import emulator
from mlx_tensorops.testing.emulator import Policies

HEAD = """#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
using ext = dextents<int, 2>;
template <class T> using view = tensor<device T, ext, tensor_inline>;
"""
LAYOUTS = [
    Policies(layout="m5"),
    Policies(layout="grid8", order="reverse"),
    Policies(layout="random", seed=1, order="random"),
    Policies(layout="random", seed=2, row_owner=True),
]
NAMES = ["m5", "grid8", "random1", "random2"]
every_layout = pytest.mark.parametrize("policies", LAYOUTS, ids=NAMES)


def run(text, buffers, grid=(1, 1, 1), threads=32, policies=None, name="k", **options):
    """Compile, launch, and give the launch; buffers by position."""
    library = emulator.compile(HEAD + text, **options)
    kernel = library.pipeline(name)
    return kernel.launch(dict(enumerate(buffers)), grid, (threads,), policies=policies)


def _functions(bodies):
    """Statements as functions that have a half*, b half*, c float* and q uchar*, a line each."""
    arguments = "device half* a, device half* b, device float* c, device uchar* q"
    lines = [
        f"void f{i}({arguments}) {{ {' '.join(body.split())} }}" for i, body in enumerate(bodies)
    ]
    return HEAD + "\n".join(lines) + "\n"


def compiles(bodies, metal_version=400):
    """All of the statements must compile."""
    emulator.compile(_functions(bodies), metal_version=metal_version)


def refuses(cases, metal_version=400):
    """Each of the (statements, reason) must fail to compile, for its reason, at its line.

    They are compiled together: a compiler reports many errors at once.
    """
    for start in range(0, len(cases), _ERRORS_AT_ONCE):
        batch = cases[start : start + _ERRORS_AT_ONCE]
        with pytest.raises(emulator.CompileError) as caught:
            emulator.compile(_functions(body for body, _ in batch), metal_version=metal_version)
        # A message ends before the next that starts with a place and "error:".
        errors = re.split(r"\n(?=\S+:\d+:\d+: error: )", str(caught.value))
        for line, (body, reason) in enumerate(batch, HEAD.count("\n") + 1):
            own = [error for error in errors if f"kernel.metal:{line}:" in error]
            assert any(re.search(reason, error) for error in own), (body, reason, own)


_ERRORS_AT_ONCE = 8  # clang gives up after 20, and some statements have several


def normal(*shape, seed=0, dtype=np.float16):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def product(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)
