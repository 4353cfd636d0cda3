"""The Metal kernels of attention's forward pass, under every choice that Metal leaves open."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import attention_cases as cases
import mlx.core as mx
import numpy as np
import pytest
from attention_cases import PLAIN
from attention_ops import ScaledDotProductAttention
from layouts import NAMES, view
from tolerance import bits_of

import mlx_tensorops as mto
from mlx_tensorops.testing import emulated_metal, emulator

ROOT = Path(__file__).parents[2]
LAYOUTS, ORDERS = ("m5", "grid", "random"), ("forward", "reverse", "random")
ROWS, WIDE = "scaled_dot_product_attention", "scaled_dot_product_attention_wide"
# Every layout, two orders and both answers about registers, with both readings of what is unsure.
POLICIES = [
    {
        "layout": layout,
        "order": order,
        "compatible": compatible,
        "seed": i,
        "fresh": ("nan", "zero")[i % 2],
        "static_k": ("trap", "masked")[i // 2 % 2],
        "row_owner": i // 3 % 2 == 1,
        "multiply": ("accumulate", "overwrite")[i // 4 % 2],
    }
    for i, (layout, order, compatible) in enumerate(
        itertools.product(LAYOUTS, ("reverse", "random"), (True, False))
    )
]
# Calls that go every way that a kernel goes: whole tiles and tails, weights that stay in registers
# and that pass through memory, rows and queries that no simdgroup shares or all do.
WAYS = {
    "rows": replace(PLAIN, n_q=40, n_k=70).with_options("causal", "sinks", "lse"),
    "rows, few keys": replace(PLAIN, n_q=17, n_k=21, dtype="float16").with_options("alibi"),
    "rows, skipped tiles": replace(PLAIN, n_q=100, n_k=161, dtype="bfloat16").with_options(
        "window", "softcap"
    ),
    "rows, documents": replace(PLAIN, n_q=70, n_k=130, dtype="float16").with_options("documents"),
    "rows, segments": replace(PLAIN, n_q=70, n_k=130).with_options("segments", "added a head"),
    "rows, blocks": replace(PLAIN, n_q=40, n_k=97, d=(7, 33)).with_options("block mask"),
    "wide": replace(PLAIN, n_q=40, n_k=130, d=(40, 200), batch=1).with_options("causal", "lse"),
    "wide, few keys": replace(PLAIN, n_q=17, n_k=21, d=(9, 130), dtype="float16"),
    "wide, skipped tiles": replace(
        PLAIN, n_q=70, n_k=200, d=(33, 300), dtype="bfloat16", batch=1, heads=(2, 1)
    ).with_options("window", "sinks", "bool mask"),
    "wide, segments": replace(
        PLAIN, n_q=40, n_k=200, d=(16, 144), batch=1, heads=(2, 1)
    ).with_options("segments", "lse"),
    "wide, q too large to share": replace(
        PLAIN, n_q=17, n_k=70, d=(576, 520), batch=1, heads=(1, 1)
    ).with_options("alibi"),
}
BY_WAY = pytest.mark.parametrize("case", WAYS.values(), ids=WAYS)


def run(case, check=True, **policies):
    """The outputs, which are within their budgets, and the launches."""
    op = ScaledDotProductAttention(case)
    arrays = op.arrays(case)
    mx.eval(arrays)
    with emulated_metal(**policies) as run:
        outputs = op.call(case, arrays, mx.cpu)
        mx.eval(outputs)
    assert not run.findings
    if check:
        for output, budget in zip(outputs, op.expected(case, arrays), strict=True):
            budget.check(output, f"{case}, {policies}")
    return outputs, [launch.op for launch in run.launches]


def same(a, b):
    return all(np.array_equal(bits_of(x), bits_of(y)) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("case", cases.single_cases() + cases.further_cases(), ids=str)
def test_under_every_policy(case):
    for policies in POLICIES:
        run(case, **policies)


@pytest.mark.parametrize(
    ("i", "case"), list(enumerate(cases.shape_cases() + cases.pair_cases())), ids=str
)
def test_under_a_policy_in_turn(i, case):
    for j in range(2):
        run(case, **POLICIES[(i + 7 * j) % len(POLICIES)])


@BY_WAY
def test_every_way(case):
    """The bits do not depend on the order of threads and threadgroups."""
    for layout, compatible in itertools.product(LAYOUTS, (True, False)):
        found = [
            run(case, layout=layout, compatible=compatible, order=order, seed=5) for order in ORDERS
        ]
        kernels = {ops[-1] for _, ops in found}
        assert kernels == {WIDE if case.d[1] > 128 else ROWS}
        assert all(same(outputs, found[0][0]) for outputs, _ in found)


@BY_WAY
def test_no_races_and_no_byte_outside(case):
    i = list(WAYS.values()).index(case)
    for j, guard in enumerate(("begin", "end")):
        order, layout = ORDERS[(i + j) % 3], LAYOUTS[(i // 3 + j) % 3]
        policies = {"order": order, "layout": layout, "guard": guard, "compatible": j == 0}
        run(case, trace=True, seed=3, **policies)


@pytest.mark.parametrize("name", ("rows", "rows, few keys", "rows, segments", "wide, segments"))
def test_nothing_depends_on_what_was_never_set(name):
    case = replace(WAYS[name], n_q=20, n_k=min(WAYS[name].n_k, 100), batch=1, heads=(1, 1))
    for compatible in (True, False):
        run(case, order="reverse", layout="random", compatible=compatible, values=True)


@pytest.mark.parametrize("name", ("rows", "wide"))
def test_operands_are_read_where_they_lie(name):
    """But for those that a tensor operation could not read; the bits are the same."""
    case = replace(WAYS[name], dtype="float16")
    op = ScaledDotProductAttention(case)
    arrays = op.arrays(case)
    expected = run(case)[0]
    for layout in NAMES:
        views = [view(a, layout) for a in arrays]
        with emulated_metal() as emulation:
            outputs = op.call(case, views, mx.cpu)
            mx.eval(outputs)
        assert same(outputs, expected), layout
        copies = [launch.op for launch in emulation.launches if launch.op == "copy_strided"]
        apart = layout in ("every other column", "transposed", "reversed")
        assert len(copies) == (3 if apart else 0), layout


def test_a_cache_is_not_copied():
    """Keys and values that are a part of longer ones, and heads behind positions."""
    cache = mx.random.normal((2, 1, 2, 100, 64)).astype(mx.float16)
    q = mx.random.normal((1, 40, 4, 64)).astype(mx.float16).swapaxes(1, 2)
    k, v = cache[0, :, :, :70], cache[1, :, :, :70]
    options = {"scale": 0.125, "mask": "causal", "force_fused": True, "stream": mx.cpu}
    with emulated_metal() as emulation:
        out = mto.scaled_dot_product_attention(q, k, v, **options)
        mx.eval(out)
    assert [launch.op for launch in emulation.launches] == [ROWS]
    with emulated_metal():
        copies = [mx.contiguous(a) for a in (q, k, v)]
        assert same([out], [mto.scaled_dot_product_attention(*copies, **options)])


def run_documents(lengths, d_v=16, **policies):
    q, k, v = (mx.ones((1, 2, 40, d)) for d in (16, 16, d_v))
    options = {"scale": 1, "return_lse": True, "force_fused": True, "stream": mx.cpu}
    with emulated_metal(**policies):
        outputs = mto.scaled_dot_product_attention(q, k, v, cu_seqlens=mx.array(lengths), **options)
        mx.eval(outputs)
    return outputs


@pytest.mark.parametrize("lengths", ([0, 30, 20, 40], [0, 50], [-1, 40], [40, 0]), ids=str)
@pytest.mark.parametrize("d_v", (16, 200))
def test_bad_lengths_give_nan(lengths, d_v):
    assert all(mx.isnan(a).all() for a in run_documents(lengths, d_v))


@pytest.mark.parametrize("name", ("rows", "wide"))
def test_float32_is_multiplied_as_float32_unless_asked(name):
    """A GPU may cut float32 operands to 11 bits where a product is relaxed, and only there."""
    case = WAYS[name]
    exact = run(case)[0]
    assert same(run(case, truncate_relaxed=True)[0], exact)
    op = ScaledDotProductAttention(case)
    arrays = op.arrays(case)
    with emulated_metal(truncate_relaxed=True):
        cut = mto.scaled_dot_product_attention(
            *arrays[:3], **op.options(case, arrays), precision="tf32", force_fused=True,
            stream=mx.cpu,
        )  # fmt: skip
        error = mx.abs(cut - exact[0]).max().item()
    assert 1e-5 < error < 1e-2


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_weights_of_16_bits_may_be_cut_to_11(dtype):
    """Which are float32 beside values of 16 bits: the error that is added is 2^-10 of a weight."""
    for name in ("rows", "wide"):
        case = replace(WAYS[name], dtype=dtype)
        exact, cut = (run(case, check=not cut, truncate_relaxed=cut)[0][0] for cut in (False, True))
        error = np.abs(np.array(cut.astype(mx.float32)) - np.array(exact.astype(mx.float32)))
        assert 0 < error.max() < 2.0**-6


# Barriers without which a kernel must be found wrong: the text that follows each, and a case.
BARRIERS = {
    "no length is wrong yet": ("bool right =", None),
    "all lengths were looked at": ("const int i = row;", None),
    "rows are there": ("return tile_rows(", "rows, segments"),
    "factors are there": ("MTO_UNROLL for (ushort i = 0; i < tile.get_capacity()", "rows"),
    "factors are used": ("}\n\n}  // namespace mto", "rows"),
    "weights are there": ("Weights left(", "rows, few keys"),
    "weights are used": ("// before the next tile", "rows"),
    "q is there": ("}\n\n  auto score", "wide"),
    "maxima are there": ("float now = row_max;", "wide"),
    "weights of all are there": ("row_sum *= rescale;", "wide"),
}


@pytest.mark.parametrize("name", BARRIERS)
def test_every_barrier_is_needed(name):
    follows, way = BARRIERS[name]
    changed = []

    def edit(source):
        barrier = r"(simdgroup|threadgroup)_barrier\((metal::)?mem_flags::mem_threadgroup\);"
        edited, n = re.subn(rf"{barrier}(?=\s*{re.escape(follows)})", "", source)
        changed.append(n)
        return edited

    policies = {"trace": True, "edit_source": edit, "order": "reverse", "compatible": False}
    with pytest.raises(emulator.Fault, match="race"):
        if way:
            run(WAYS[way], **policies)
        else:  # only what is wrong is said
            run_documents([0, 30, 20], **policies)
    assert max(changed) == 1


# Changes that must show: a text of a kernel, what becomes of it, and a case that it matters to.
FAULTS = {
    "identity of the maximum": ("Reduction::max, kLowest", "Reduction::max, 0.0f", "negative"),
    "first key of the last tile": ("begin - keys.first;", "0;", "rows"),
    "end of the keys": ("min(n_keys, tile_rows", "min(n_keys - 1, tile_rows", "one more"),
    "begin of the keys": ("(0, tile_rows.begin_min)", "(0, tile_rows.begin_min + 32)", "window"),
    "rows of a tile": ("array<int, 2>{1, k_stride}", "array<int, 2>{1, k_stride + 1}", "rows"),
    "earlier sums": ("metal::max(before - now, -kVanishing)", "0.0f", "rows"),
    "sums are cleared": ("mto::clear(sums);", "", "rows"),
    "sink": ("mto::first_max(sink)", "mto::kLowest", "rows"),
    "every tile is plain": ("visibility == mto::Visibility::kAll &&", "true &&", "rows"),
    "head of keys": ("h / (params.n_heads / params.n_kv_heads)", "h % params.n_kv_heads", "rows"),
    "slots in order": ("facts.rows[at[1]]", "facts.rows[i / 8]", "rows, random"),
    "mask": ("score += masked(", "score -= masked(", "rows, segments"),
    "block": ("i / blocks.block_rows * blocks.row", "i / blocks.block_keys * blocks.row", "blocks"),
    "segment": ("row.segment == k_segment", "row.segment <= k_segment", "rows, segments"),
    "document": ("end_at(k, low - 1)", "end_at(k, 0)", "rows, documents"),
    "wide: columns": ("+ column;\n  const auto facts", ";\n  const auto facts", "wide"),
    "wide: others' maxima": ("i < Splits; ++i) now", "i < 1; ++i) now", "wide, large"),
    "wide: others' sums": ("+= shared.sums[i][row]", "+= shared.sums[0][row]", "wide"),
    "wide: unseen": ("if (!shared.seen[turn][i]) continue;", "", "wide, skipped"),
}  # fmt: skip
FAULTY = {
    "negative": replace(PLAIN, n_q=40, n_k=3, magnitude=30),
    "wide, large": replace(WAYS["wide"], magnitude=100),
    "one more": replace(PLAIN, n_q=40, n_k=65),
    "window": WAYS["rows, skipped tiles"],
    "blocks": WAYS["rows, blocks"],
    "rows, random": WAYS["rows"],
    "wide, skipped": WAYS["wide, skipped tiles"],
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_shows(name):
    text, wrong, way = FAULTS[name]
    case = FAULTY.get(way) or WAYS[way]
    changed = []

    def edit(source):
        changed.append(text in source)
        return source.replace(text, wrong)

    with pytest.raises((AssertionError, emulator.Fault)):
        run(case, edit_source=edit, layout="random" if way == "rows, random" else "m5")
    assert any(changed)


@pytest.mark.parametrize(
    ("file", "function"),
    [
        (ROWS, "attention_forward<half, 16, 32, 64, true, true>"),
        (ROWS, "attention_forward<float, 16, 32, 32, false, false>"),
        (WIDE, "attention_forward_wide<bfloat, 16, 32, 96, 2, true, true>"),
        (f"{ROWS}_rows", "attention_rows<256>"),
        ("copy_strided", "copy_strided<ushort>"),
    ],
)
def test_address_spaces(file, function):
    complaints = emulator.check(
        (ROOT / f"metal/{file}.metal").read_text(),
        include_dirs=(ROOT / "metal", ROOT / "csrc"),
        instantiations={"kernel": function},
    )
    assert complaints == ()
