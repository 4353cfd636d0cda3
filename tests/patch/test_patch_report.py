"""report: what is counted, how it reads, and how it starts anew."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from tiny_models import TinyModel, mixed_bits, tiny_llama

import mlx_tensorops as mto
from mlx_tensorops.patch import LeftAlone, ModuleRow, OpRow, PatchWarning, Report

TOKENS = mx.array([[3, 1, 4]])


@pytest.fixture(autouse=True)
def _fresh_counts():
    mto.reset_report()


def test_counts_of_each_module():
    model = TinyModel()
    with mto.patched(model):
        for _ in range(3):
            model(TOKENS)
    rows = {row.path: row for row in mto.report().modules}
    assert {path: (row.class_name, row.fused) for path, row in rows.items()} == {
        "embedding": ("QuantizedEmbedding", 6),
        "layers.0": ("QuantizedLinear", 6),
        "layers.1": ("QuantizedLinear", 3),
    }
    assert rows["layers.0"].aliases == ("layers.2",)


def test_report_is_a_snapshot():
    model = TinyModel()
    with mto.patched(model):
        at_patch = mto.report()
        model(TOKENS)
        assert at_patch.total_fused == 0 and len(at_patch.never_called) == 3
        before_reset = mto.report()
        before_reset.reset()
        assert before_reset.total_fused == 5
        assert mto.report().total_fused == 0
        assert len(mto.report().modules) == 3
        model(TOKENS)
        assert mto.report().total_fused == 5


def test_op_counters_are_shown():
    layer = nn.QuantizedLinear(64, 8)
    with mto.patched(layer):
        mx.eval(layer(mx.ones((1, 64))))
    fused = [row for row in mto.report().ops if row.outcome == "fused"]
    assert [(row.op, row.backend) for row in fused if row.op == "quantized_matmul"] == [
        ("quantized_matmul", "cpu")
    ]


def test_summary_of_a_mixed_model():
    model = tiny_llama(mixed_bits)
    single = model.layers[1].mlp.up_proj
    n = single.weight.shape[-1] * 32 // single.bits
    x = mx.ones((1, n)).astype(mx.float64, stream=mx.cpu)
    with mto.patched(model), pytest.warns(PatchWarning):
        model(TOKENS)
        single(x)
    text = mto.report().summary()
    assert text == str(mto.report())
    assert "the last reset: 17 (2 Attention, 1 QuantizedEmbedding, 14 QuantizedLinear)" in text
    assert "module calls through our ops: 18, fallbacks to MLX: 1" in text
    assert "  model.layers.1.mlp.up_proj (QuantizedLinear): MLX's code ran 1 calls: " in text
    assert "never called" not in text


def test_summary_points_at_modules_that_never_ran(tracing):
    model = TinyModel()
    traced = mx.compile(model)
    mx.eval(traced(TOKENS))
    with mto.patched(model):
        mx.eval(traced(TOKENS))
    assert len(mto.report().never_called) == 3
    assert "never called: 3 (a function that mx.compile traced before patch()" in str(mto.report())


def test_function_compiled_while_patched_runs_our_ops(tracing):
    model = TinyModel()
    expected = model(TOKENS)
    with mto.patched(model):
        traced = mx.compile(model)
        for _ in range(3):
            assert mx.allclose(traced(TOKENS), expected, atol=1e-4)
    # Counted once: only the trace calls the modules.
    assert mto.report().total_fused == 5


def test_paths_are_in_natural_order():
    model = nn.Sequential(*[nn.QuantizedLinear(32, 32, group_size=32) for _ in range(12)])
    with mto.patched(model):
        rows = mto.report().modules
    assert [row.path for row in rows] == [f"layers.{i}" for i in range(12)]


def test_totals_and_rendering_of_given_rows():
    report = Report(
        modules=(
            ModuleRow("a", "QuantizedLinear", 3, {"mode 'mxfp4'": 2}),
            ModuleRow("b", "QuantizedLinear", 4),
            ModuleRow("c", "QuantizedEmbedding", 0),
        ),
        left_alone=(LeftAlone("d", "Other", "no patch for this class"),),
        ops=(OpRow("quantized_matmul", "cpu", "fused", 7), OpRow("quantize", "cpu", "dtype", 1)),
    )
    assert (report.total_fused, report.total_fallbacks) == (7, 3)
    assert report.summary().splitlines() == [
        "modules patched since the last reset: 3 (1 QuantizedEmbedding, 2 QuantizedLinear)",
        "module calls through our ops: 7, fallbacks to MLX: 3",
        "never called: 1 (a function that mx.compile traced before patch() keeps MLX's code)",
        "  a (QuantizedLinear): MLX's code ran 2 calls: mode 'mxfp4'",
        "left alone: 1",
        "  d (Other): no patch for this class",
        "ops:",
        "  quantized_matmul [cpu] fused: 7",
        "  quantize [cpu] dtype: 1",
    ]


def test_empty_report():
    assert mto.report().summary().splitlines()[:2] == [
        "modules patched since the last reset: 0",
        "module calls through our ops: 0, fallbacks to MLX: 0",
    ]
