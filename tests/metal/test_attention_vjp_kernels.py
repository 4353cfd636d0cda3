"""The Metal kernels of attention's gradients, under every choice that Metal leaves open."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from attention_gradients import APART, TOGETHER, Gradients
from tolerance import assert_same_bits, bits_of

import mlx_tensorops as mto
from mlx_tensorops.testing import emulated_metal, emulator

LAYOUTS, ORDERS = ("m5", "grid", "random"), ("forward", "reverse", "random")
# A case for every way that a kernel goes.
CASES = {
    "apart": replace(APART, dtype="float16").with_options("causal", "alibi", "sinks"),
    "apart, bfloat16": replace(APART, dtype="bfloat16").with_options("added a head", "window"),
    "together": TOGETHER.with_options("segments", "softcap", "alibi"),
    "together, bfloat16": replace(TOGETHER, dtype="bfloat16").with_options("documents"),
    "together, float16": replace(TOGETHER, dtype="float16").with_options("block mask"),
    "few": replace(TOGETHER, n_q=3, n_k=5, d=(7, 33), lse=True).with_options("added a key"),
    "long rows": replace(TOGETHER, d=(576, 512), dtype="float16", n_q=17, n_k=33),
}
BY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def kernels(gradients):
    return {launch.kernel.split("<")[0] for launch in gradients.launches()}


@BY_CASE
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_and_handoff(case, layout):
    """Right on each, and handed over through memory a tile has the bits that it has in registers.

    The forward pass may round another way on another layout.
    """
    i = LAYOUTS.index(layout)
    choices = {"layout": layout, "order": ORDERS[i], "seed": i, "fresh": ("nan", "zero")[i % 2]}
    in_registers = Gradients(case, **choices).check()
    assert {"attention_grad_rows", "attention_grad"} <= kernels(in_registers)
    in_memory = Gradients(case, compatible=False, **choices).check()
    for name, value in in_registers.values.items():
        assert_same_bits(in_memory.values[name], value, name)
    Gradients(case, truncate_relaxed=True, **choices).check()


@BY_CASE
def test_the_same_bits_every_time(case):
    """No sum depends on the order of threads and threadgroups."""
    for layout in ("m5", "random"):
        first = Gradients(case, layout=layout, seed=4)
        for order in ORDERS:
            again = Gradients(case, layout=layout, order=order, seed=4)
            for name, value in first.values.items():
                assert_same_bits(again.values[name], value, f"{name}, {layout}, {order}")


@pytest.mark.parametrize("name", ("apart", "apart, bfloat16", "together", "together, bfloat16"))
def test_no_races_and_no_byte_outside(name):
    for guard, order, compatible in (("begin", "random", True), ("end", "reverse", False)):
        policies = {"guard": guard, "order": order, "compatible": compatible}
        Gradients(CASES[name], layout="random", seed=5, trace=True, **policies).check()


@pytest.mark.parametrize("name", ("apart", "few"))
def test_no_value_is_used_that_was_never_set(name):
    Gradients(CASES[name], compatible=False, values=True).check()


def test_float32_is_multiplied_as_float32_unless_asked():
    """A GPU may cut float32 operands to 11 bits where a product is relaxed, and only there."""
    q, k, v = (mx.random.normal((1, 2, 40, 16), key=mx.random.key(i)) for i in range(3))

    def gradient(precision, **policies):
        def total(q):
            options = {"precision": precision, "force_fused": True, "stream": mx.cpu}
            out = mto.scaled_dot_product_attention(q, k, v, scale=0.25, **options)
            return out.square().sum()

        with emulated_metal(**policies):
            return np.array(mx.grad(total)(q))

    exact = gradient(None)
    assert (gradient(None, truncate_relaxed=True) == exact).all()
    error = np.abs(gradient("tf32", truncate_relaxed=True) - exact).max()
    assert 1e-5 < error < 1e-1


MASK_AXES = ("BHQK", "HQK", "BQK", "BHK", "BHQ", "QK", "HK", "HQ", "B", "Q", "K", "")


@pytest.mark.parametrize("axes", MASK_AXES)
def test_the_gradient_of_a_mask_is_summed_over_what_it_was_broadcast_over(axes):
    i = MASK_AXES.index(axes)
    case = replace(APART, mask="float32", mask_axes=axes, window=(None, 30), n_q=(20, 40)[i % 2])
    gradients = Gradients(case, layout=LAYOUTS[i % 3], order=ORDERS[i // 3 % 3], seed=i).check()
    assert len(gradients.launches("attention_mask_grad")) == 1


def test_a_mask_of_two_batch_dimensions():
    """One of which it broadcasts over."""
    shape = (3, 1, 2, 2, 9, 33)  # heads, queries and keys behind the batch
    rng = np.random.default_rng(6)
    q, k, v = (mx.array(rng.standard_normal((6, 2, n, 16)).astype(np.float32)) for n in (9, 33, 33))
    mask = mx.array(rng.standard_normal((3, 1, 2, 9, 33)).astype(np.float32))

    def total(mask):
        def of_one(q, k, v, mask):
            options = {"scale": 0.25, "mask": mask, "force_fused": True, "stream": mx.cpu}
            return mto.scaled_dot_product_attention(q[None], k[None], v[None], **options)[0]

        parts = [a.reshape(3, 2, *a.shape[1:]) for a in (q, k, v)]
        inner = mx.vmap(of_one, in_axes=(0, 0, 0, None))
        return mx.vmap(inner)(*parts, mask[:, 0]).square().sum()

    assert mask.shape == (shape[0], 1, *shape[3:])
    expected = mx.grad(total)(mask)
    mx.eval(expected)
    with emulated_metal() as run:
        found = mx.grad(total)(mask)
        mx.eval(found)
    assert any("attention_mask_grad" in launch.kernel for launch in run.launches)
    assert np.abs(np.array(found) - np.array(expected)).max() < 1e-4


@pytest.mark.parametrize("ends", ([0, 9, 5, 9], [0, 4, 99, 99], [-1, 3, 5, 9]))
def test_lengths_that_are_no_documents_make_every_gradient_nan(ends):
    ends = mx.array(ends, mx.int32)
    q, k, v = (mx.random.normal((1, 2, 9, 8), key=mx.random.key(i)) for i in range(3))
    inputs = [q, k, v, mx.zeros((9, 9)), mx.ones((2,))]

    def total(q, k, v, mask, alibi):
        options = {"mask": mask, "alibi": alibi, "cu_seqlens": ends, "scale": 1.0}
        call = mto.scaled_dot_product_attention
        return call(q, k, v, **options, force_fused=True, stream=mx.cpu).sum()

    with emulated_metal(trace=True, guard="begin"):
        gradients = mx.grad(total, argnums=range(5))(*inputs)
        mx.eval(gradients)
    assert all(mx.isnan(g).all() for g in gradients)


@pytest.mark.parametrize("name", ("apart", "together, bfloat16"))
def test_tiles_that_are_skipped_would_have_added_nothing(name):
    case = CASES[name]

    def visit_all(source):
        return source.replace(
            "if (visibility == mto::Visibility::kNone) return", "if (false) return"
        )

    skipping, visiting = Gradients(case), Gradients(case, edit_source=visit_all).check()
    flops = [g.run.total("matmul_flops") for g in (skipping, visiting)]
    assert flops[0] < flops[1]
    for key, value in skipping.values.items():
        assert_same_bits(visiting.values[key], value, key)


def test_address_spaces():
    sources = set()

    def note(source):
        sources.add(source)
        return source

    for name in ("apart, bfloat16", "together"):
        Gradients(CASES[name], edit_source=note)
    ours = [source for source in sources if "attention_grad" in source]
    assert len(ours) >= 6
    for source in ours:
        assert emulator.check(source) == ()


def test_bits_differ_where_values_do():
    """The comparisons above could fail."""
    first, other = Gradients(CASES["few"]), Gradients(replace(CASES["few"], window=2))
    assert any((bits_of(first.values[n]) != bits_of(other.values[n])).any() for n in first.names)
