"""Launches of some of Apple's kernels, small and plain, for tests of what the emulator watches."""

import struct
from collections.abc import Callable
from dataclasses import dataclass

import apple_kernels as ak
import numpy as np


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(axis, threads):
    arguments = {0: normal(2, axis), 1: np.zeros((2, axis), np.float32), 2: axis}
    return {}, arguments, dict(grid=(2,), threadgroup=(threads,))


def logsumexp():
    arguments = {0: normal(2, 700), 1: np.zeros(2, np.float32), 2: 700}
    return {}, arguments, dict(grid=(2,), threadgroup=(192,))


def sdpa_vector():
    q, k, v = normal(2, 1, 64), normal(2, 70, 64, seed=1), normal(2, 70, 64, seed=2)
    arguments = {0: q, 1: k, 2: v, 3: np.zeros_like(q), 4: 1, 5: 70}
    arguments |= {6: 70 * 64, 7: 64, 8: 70 * 64, 9: 64, 10: 0.125}
    constants = dict.fromkeys(range(20, 26), False)
    return constants, arguments, dict(grid=(2, 1), threadgroup=(1024,))


def qmm(transpose, tile):
    m, n, k = 40, 64, 128
    rows, columns = (n, k) if transpose else (k, n)
    rng = np.random.default_rng(3)
    weights = rng.integers(0, 2**32, (rows, columns // 8), dtype=np.uint32)
    scales, biases = normal(rows, columns // 32), normal(rows, columns // 32, seed=1)
    arguments = dict(enumerate((weights, scales, biases, normal(m, k))))
    arguments |= {4: np.zeros((m, n), np.float32), 5: k, 6: n, 7: m}
    arguments |= dict.fromkeys(range(8, 16))
    return {}, arguments, dict(grid=(n // tile, -(-m // tile)), threadgroup=(32, 2, 2))


def attention(dim, n_rows):
    length, keys = 40, 70
    q = normal(1, 1, length, dim)
    k, v = normal(1, 1, keys, dim, seed=1), normal(1, 1, keys, dim, seed=2)
    sizes = (1, 1, dim, length, keys, 1, dim**-0.5, 2, 3, 1, 2, 8, 6, 0)
    params = struct.pack("<6if7i12q", *sizes, *4 * [0, 0, dim])
    constants = {200: False, 201: False, 300: False, 301: False, 302: False, 303: False}
    arguments = {0: q, 1: k, 2: v, 3: np.zeros_like(q), 4: params}
    return constants, arguments, dict(grid=(2, 1, 1), threadgroup=(32, n_rows, 4 // n_rows))


@dataclass(frozen=True)
class Case:
    """A kernel, what to launch it with, and how many of its barriers that launch passes.

    redundant: barriers that the launch passes, and that no access needs.
    before: headers to include before that of the kernel.
    """

    header: str
    instance: str
    launch: Callable
    n_barriers: int
    redundant: tuple[int, ...] = ()
    before: tuple[str, ...] = ()

    def __str__(self):
        return self.instance.split("<")[0]

    def source(self):
        """The headers that the kernel needs."""
        return ak.source("utils.h", *self.before, self.header)

    def run(self, library, constants):
        """Launch the kernel "kernel" of the library, whatever is found."""
        own, arguments, sizes = self.launch()
        kernel = library.pipeline("kernel", own | constants)
        known = {argument.index for argument in kernel.arguments}
        arguments = {index: value for index, value in arguments.items() if index in known}
        return kernel.launch(arguments, check=False, **sizes)


GEMM = ("steel/gemm/gemm.h", "quantized_utils.h")
NAX = ("steel/gemm/gemm_nax.h",)
ATTENTION = "steel/attn/kernels/steel_attention.h"
ATTENTION_NAX = "steel/attn/kernels/steel_attention_nax.h"
F32 = "float, float"
# Barriers named as redundant stand before code that touches registers and device memory only: the
# stores of the results of qmm, and the loop of attention, which begins with a barrier of its own.
CASES = [
    Case("softmax.h", f"softmax_single_row<{F32}>", lambda: softmax(700, 192), 5),
    Case("softmax.h", f"softmax_looped<{F32}>", lambda: softmax(5000, 1024), 2),
    Case("logsumexp.h", f"logsumexp<{F32}>", logsumexp, 4),
    Case("sdpa_vector.h", "sdpa_vector<float, 64, 64>", sdpa_vector, 3),
    Case(
        *("quantized.h", "affine_qmm_t<float, 32, 4, true, false>"),
        *(lambda: qmm(True, 32), 5, (1453,), GEMM),
    ),
    Case(
        *("quantized.h", "affine_qmm_n<float, 32, 4, false>"),
        *(lambda: qmm(False, 32), 5, (1589,), GEMM),
    ),
    Case(
        *("quantized_nax.h", "affine_qmm_t_nax<float, 32, 4, true, false, 64, 64, 64, 2, 2>"),
        *(lambda: qmm(True, 64), 3, (1155,), NAX),
    ),
    Case(
        *(ATTENTION, "attention<float, 32, 32, 64, 64, 4, 1, float, float>"),
        *(lambda: attention(64, 4), 5, (232,)),
    ),
    Case(
        *(ATTENTION_NAX, "attention_nax_dsplit<float, 32, 32, 256, 2, 2, float, float>"),
        *(lambda: attention(256, 2), 2),
    ),
]
