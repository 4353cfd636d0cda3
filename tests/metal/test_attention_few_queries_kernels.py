"""The Metal kernels for few queries, dense and packed: orders, races, unset values, faults."""

import re

import mlx.core as mx
import numpy as np
import pytest
from affine_cases import random_floats
from tolerance import bits_of

import mlx_tensorops as mto
from mlx_tensorops.testing import emulated_metal, emulator

D, D_V, N_Q = 80, 128, 3
IDS = [0] * 5 + [1] * 200 + [-1] * 4 + [1] * 91
# Everything that a kernel may be asked for, in few calls; sinks and lse always.
CALLS = {
    "plain": {},
    "split": {"n_keys": 1100},
    "window": {"window": (100, 3), "softcap": 3.0, "alibi": mx.array([0.1, 0.2, 0.3, 0.4])},
    "segments": {
        "segment_ids": (mx.array([[0, 1, 1]]), mx.array([IDS])),
        "mask": mx.where(mx.arange(300) % 7 == 3, -mx.inf, 0.25).astype(mx.float16),
    },
    "documents": {
        "cu_seqlens": (mx.array([0, 1, 3]), mx.array([100, 177, 290])),
        "block_mask": mx.array([[False, True, True]]),
        "block_size": (16, 100),
        "mask": mx.arange(300) % 5 != 2,
    },
}
BY_CALL = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
FORMATS = ((32, 3), (64, 8))
BOTH = pytest.mark.parametrize("packed", (False, True), ids=("dense", "packed"))


def attend(call, packed=False, dtype=mx.float16):
    """The bits of output and logsumexp, of one KV head and 4 query heads."""
    call = dict(call)
    n_keys = call.pop("n_keys", 300)
    rng = np.random.default_rng(1)
    d = 96 if packed else D
    shapes = (1, 4, N_Q, d), (1, 1, n_keys, d), (1, 1, n_keys, D_V)
    q, k, v = (random_floats(rng, shape, dtype) for shape in shapes)
    options = call | {"sinks": mx.array([0.5, -1.0, 2.0, 0.0]), "return_lse": True}
    options |= {"force_fused": True, "stream": mx.cpu}
    if not packed:
        outputs = mto.scaled_dot_product_attention(q, k, v, scale=0.2, **options)
        return [bits_of(a) for a in outputs]
    k, v = (mx.quantize(a, *f, stream=mx.cpu) for a, f in zip((k, v), FORMATS, strict=True))
    group_size, bits = zip(*FORMATS, strict=True)
    outputs = mto.quantized_scaled_dot_product_attention(
        q, k, v, 0.2, group_size=group_size, bits=bits, **options
    )
    return [bits_of(a) for a in outputs]


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@BOTH
@BY_CALL
def test_no_races_and_no_byte_outside(call, packed):
    """Under every order of threads and either guard; and the bits are the same."""
    with emulated_metal() as run:
        expected = attend(call, packed)
    ran = [launch.op for launch in run.launches if "rows" not in launch.op]
    few = "scaled_dot_product_attention_few_queries"
    first = f"quantized_{few}" if packed else few
    assert ran == ([first, few] if "n_keys" in call else [first])
    for order, guard in (("forward", "begin"), ("reverse", "end"), ("random", "end")):
        with emulated_metal(order=order, guard=guard, trace=True, seed=3) as run:
            assert same(attend(call, packed), expected), order
        assert not run.findings


@pytest.mark.parametrize(
    ("name", "packed"),
    [("split", False), ("window", True), ("segments", False), ("documents", True)],
)
def test_nothing_depends_on_what_was_never_set(name, packed):
    with emulated_metal():
        expected = attend(CALLS[name], packed)
    with emulated_metal(order="reverse", values=True) as run:
        assert same(attend(CALLS[name], packed), expected)
    assert not run.findings


# Barriers without which a kernel must be found wrong, by the text that follows them.
BARRIERS = {
    "queries are there": "mto::FewQueriesScores scores",
    "splits are there": "float top = -INFINITY, total",
    "totals are there": "for (int r = 0; r < n_rows; ++r) {\n    float highest",
    "sums are there": "sink.begin(",
    "sums are used": "}\n}",
}


@pytest.mark.parametrize("follows", BARRIERS.values(), ids=BARRIERS)
def test_every_barrier_is_needed(follows):
    def edit(source):
        barrier = r"threadgroup_barrier\((metal::)?mem_flags::mem_threadgroup\);"
        pattern = rf"{barrier}(?=[^\n]*\n\s*{re.escape(follows)})"
        return re.sub(pattern, "", source)

    with emulated_metal(order="reverse", trace=True, edit_source=edit):
        with pytest.raises(emulator.Fault, match="race"):
            attend(CALLS["split"])


# Changes that must show: in the text of a kernel, what becomes of it, and the call it matters to.
FAULTS = {
    "columns": ("int(lane) * kWidth + n % kWidth;", "n;", "plain", False),
    "key": ("chunk + int(lane) % kChunk;", "chunk + int(lane) % kChunk + 1;", "window", False),
    "weight": ("ushort(r * kChunk + k)", "ushort(r * kChunk)", "plain", False),
    "factor": ("total *= factor;\n      for", "for", "plain", False),
    "skipped": ("seen.begin_min - begin, 0", "seen.begin_min - begin + 64, 0", "documents", False),
    "split": ("place.split * few.split_keys", "place.split * (few.split_keys + 1)", "split", False),
    "merged": ("metal::exp(top - highest)", "1.0f", "split", False),
    "sink": ("total += relative_to(highest, sink)", "total += 1.0f", "plain", False),
    "mask": ("return score + added", "return score", "segments", False),
    "cap": ("capped(scores, product, tanh_of)", "scores.scale * product", "window", False),
    "next word": ("<< (32 - shift)", "<< (31 - shift)", "plain", True),
    "group": ("ushort(group % kLanes)", "ushort(0)", "plain", True),
    "bias": (
        "fma(level(code), parameters[0], parameters[1])",
        "fma(level(code), parameters[0], 0.0f)",
        "plain",
        True,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_shows(name):
    """The tests of values compare with float64; here the difference alone."""
    text, wrong, call, packed = FAULTS[name]
    with emulated_metal():
        right = attend(CALLS[call], packed)
    changed = []

    def edit(source):
        changed.append(text in source)
        return source.replace(text, wrong)

    with emulated_metal(edit_source=edit):
        assert not same(attend(CALLS[call], packed), right)
    assert any(changed)


def test_address_spaces():
    sources = []

    def keep(source):
        sources.append(source)
        return source

    with emulated_metal(edit_source=keep):
        attend(CALLS["split"])
        attend({}, packed=True)
    for source in set(sources):
        assert emulator.check(source) == ()
