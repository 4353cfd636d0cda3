"""Apple's sdpa_vector and its two-pass form, unmodified, against float64."""

from dataclasses import dataclass

import apple_kernels as ak
import numpy as np
import pytest

F, H, B = "float", "half", "bfloat16_t"
HAS_MASK, QUERY_TRANSPOSED, CAUSAL, BOOL_MASK, FLOAT_MASK, HAS_SINKS, BLOCKS = range(20, 27)
SIZES = [(F, 64, 64), (H, 128, 128), (B, 64, 64), (H, 192, 128)]


@pytest.fixture(scope="module")
def library(apple):
    kernels = ("sdpa_vector", "sdpa_vector_2pass_1")
    instances = {
        f"{kernel}_{kind}_{d}_{v}": f"{kernel}<{kind}, {d}, {v}>"
        for kernel in kernels
        for kind, d, v in SIZES
    }
    for kind, v in sorted({(kind, v) for kind, _, v in SIZES}):
        instances[f"sdpa_vector_2pass_2_{kind}_{v}"] = f"sdpa_vector_2pass_2<{kind}, {v}>"
    return apple("utils.h", "sdpa_vector.h", **instances)


@dataclass(frozen=True)
class Case:
    size: tuple[str, int, int]
    heads: int = 4
    kv_heads: int = 4
    queries: int = 1
    keys: int = 70
    mask: str = ""
    sinks: bool = False
    transposed: bool = False

    def __str__(self):
        kind, d, v = self.size
        text = f"{kind}-{d}-{v}-h{self.heads}.{self.kv_heads}-{self.queries}x{self.keys}"
        extras = (self.mask, "sinks" * self.sinks, "transposed" * self.transposed)
        return "-".join(filter(None, (text, *extras)))


CASES = [
    Case((F, 64, 64)),
    Case((F, 64, 64), heads=6, kv_heads=2, queries=3, keys=45, mask="causal"),
    Case((F, 64, 64), queries=2, keys=40, mask="bool"),
    Case((F, 64, 64), queries=2, keys=31, mask="float", sinks=True),
    Case((F, 64, 64), keys=1),
    Case((H, 128, 128), heads=8, kv_heads=1, keys=130, transposed=True, queries=2),
    Case((H, 192, 128), heads=2, kv_heads=1, keys=66),
    Case((B, 64, 64), queries=5, keys=50, mask="causal", sinks=True),
]


class Problem:
    """Inputs of a case and its float64 result, with an error budget from the scores' size."""

    def __init__(self, case):
        self.case = case
        kind, d, v = case.size
        rng = np.random.default_rng(case.keys)
        self.q = ak.rounded(rng.normal(size=(case.heads, case.queries, d)), kind)
        self.k = ak.rounded(rng.normal(size=(case.kv_heads, case.keys, d)), kind)
        self.v = ak.rounded(rng.normal(size=(case.kv_heads, case.keys, v)), kind)
        self.sinks = ak.rounded(rng.normal(size=case.heads), kind)
        shape = (case.heads, case.queries, case.keys)
        self.bool_mask = rng.random(shape) < 0.7
        self.float_mask = ak.rounded(rng.normal(size=shape), kind)
        self.scale = d**-0.5

    def expected(self):
        case = self.case
        q, k, v = (ak.float32(x).astype(np.float64) for x in (self.q, self.k, self.v))
        k, v = (np.repeat(x, case.heads // case.kv_heads, axis=0) for x in (k, v))
        scores = self.scale * q @ k.transpose(0, 2, 1)
        magnitude = self.scale * np.abs(q) @ np.abs(k).transpose(0, 2, 1)
        if case.mask == "causal":
            last = np.arange(case.queries)[:, None] + case.keys - case.queries
            scores = np.where(np.arange(case.keys) <= last, scores, -np.inf)
        elif case.mask == "bool":
            scores = np.where(self.bool_mask, scores, -np.inf)
        elif case.mask == "float":
            scores = scores + ak.float32(self.float_mask)
        if case.sinks:
            sinks = np.broadcast_to(
                ak.float32(self.sinks)[:, None, None], (case.heads, case.queries, 1)
            )
            scores = np.concatenate([scores, sinks], -1)
            v = np.concatenate([v, np.zeros_like(v[:, :1])], 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        # The relative error of a weight is the absolute one of its score.
        budget = (magnitude.max() + 8) * 4 * ak.ROUNDING[F] * (weights @ np.abs(v))
        return weights @ v, budget

    def queries(self):
        """As the kernel reads them: the transposed layout has queries outside heads."""
        q = self.q.transpose(1, 0, 2) if self.case.transposed else self.q
        return np.ascontiguousarray(q)

    def constants(self, blocks=0):
        case = self.case
        return {
            HAS_MASK: case.mask in ("bool", "float"),
            QUERY_TRANSPOSED: case.transposed,
            CAUSAL: case.mask == "causal",
            BOOL_MASK: case.mask == "bool",
            FLOAT_MASK: case.mask == "float",
            HAS_SINKS: case.sinks,
            BLOCKS: blocks,
        }

    def strides(self):
        case = self.case
        return case.keys * case.size[1], case.size[1], case.keys * case.size[2], case.size[2]

    def extras(self, first, with_heads):
        """Buffers of mask and sinks from the index `first` on."""
        case = self.case
        extras = {}
        if case.mask in ("bool", "float"):
            extras[first + (case.mask == "float")] = getattr(self, f"{case.mask}_mask")
            strides = (1, case.keys, case.queries * case.keys)
            extras |= {first + 2 + i: stride for i, stride in enumerate(strides)}
        if case.sinks:
            extras[first + 5] = self.sinks
            if with_heads:
                extras[first + 6] = case.heads
        return extras


def suffix(case):
    return "_".join(map(str, case.size))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sdpa_vector(library, case):
    problem = Problem(case)
    kind, _, v = case.size
    out = np.zeros((case.heads, case.queries, v), ak.DTYPES[kind])
    sizes = (case.heads // case.kv_heads, case.keys, *problem.strides(), problem.scale)
    buffers = dict(enumerate((problem.queries(), problem.k, problem.v, out, *sizes)))
    kernel = library.pipeline(f"sdpa_vector_{suffix(case)}", problem.constants())
    kernel.launch(
        buffers | problem.extras(11, with_heads=True),
        grid=(case.heads, case.queries),
        threadgroup=(1024,),
    )
    ak.assert_within(out, *problem.expected(), kind)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("blocks", [32, 64])
def test_two_passes(library, case, blocks):
    problem = Problem(case)
    kind, _, v = case.size
    rows = (case.heads, case.queries)
    partial = np.zeros((*rows, blocks, v), ak.DTYPES[kind])
    sums, tops = (np.zeros((*rows, blocks), np.float32) for _ in range(2))
    group = case.heads // case.kv_heads
    buffers = dict(enumerate((problem.queries(), problem.k, problem.v, partial, sums, tops)))
    buffers |= dict(enumerate((case.keys, *problem.strides(), problem.scale), 7))
    first = library.pipeline(f"sdpa_vector_2pass_1_{suffix(case)}", problem.constants(blocks))
    first.launch(
        buffers | problem.extras(13, with_heads=False),
        grid=(case.kv_heads, 1, blocks),
        threadgroup=(32, group, case.queries),
    )
    out = np.zeros((*rows, v), ak.DTYPES[kind])
    second = library.pipeline(f"sdpa_vector_2pass_2_{kind}_{v}")
    buffers = dict(enumerate((partial, sums, tops, out, blocks)))
    second.launch(buffers, grid=rows, threadgroup=(1024,))
    expected, budget = problem.expected()
    # Partial results are rounded to the type of the output.
    spread = np.abs(ak.float32(problem.v)).max()
    ak.assert_within(out, expected, budget + ak.ROUNDING[kind] * spread, kind)
