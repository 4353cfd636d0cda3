"""Verified before trusted: wrong kernels are not used, right ones are."""

import threading
import warnings

import mlx.core as mx
import mlx.nn as nn
import pytest
from planted_faults import (
    PACKED,
    WRONG_CODES,
    WRONG_COLUMNS,
    WRONG_DEPTH,
    WRONG_ROWS,
    W,
    X,
    replaced,
    same,
)

import mlx_tensorops as mto
from mlx_tensorops.testing import emulated_metal
from mlx_tensorops.verification import KernelWarning, Verdict, verdicts

FAULTS = {
    "quantize": (WRONG_CODES, lambda **o: mto.quantize(W, **o), lambda: mx.quantize(W)),
    "dequantize": (
        WRONG_ROWS,
        lambda **o: [mto.dequantize(*PACKED, **o)],
        lambda: [mx.dequantize(*PACKED)],
    ),
    "few rows": (
        WRONG_COLUMNS,
        lambda **o: [mto.quantized_matmul(X[:2], *PACKED, **o)],
        lambda: [mx.quantized_matmul(X[:2], *PACKED)],
    ),
    "many rows": (
        WRONG_DEPTH,
        lambda **o: [mto.quantized_matmul(X, *PACKED, **o)],
        lambda: [mx.quantized_matmul(X, *PACKED)],
    ),
}
BY_FAULT = pytest.mark.parametrize(("edit", "call", "mlx_call"), FAULTS.values(), ids=FAULTS)


@BY_FAULT
def test_a_fault_at_large_sizes_is_found(edit, call, mlx_call):
    with emulated_metal(edit_source=edit, verify=True) as run:
        with pytest.warns(KernelWarning) as warned:
            found = call(route="ours")
        mx.eval(found)
        again = call(route="ours")
        mx.eval(again)
        (verdict,) = verdicts()
    assert same(found, mlx_call()) and same(again, mlx_call())
    assert run.launches == [] and len(run.trials) == 2
    (message,) = {str(w.message) for w in warned}
    assert message.startswith(
        f"[verification] kernel {verdict.kernel} is not used on applegpu_g17g"
    )
    assert verdict.fault in message and "values are wrong, at (" in verdict.fault
    (row,) = mto.report().ops
    assert (row.backend, row.count) == ("metal", 2)
    assert row.outcome == f"kernel {verdict.kernel}: {verdict.fault}"
    assert row.outcome in mto.report().summary()
    assert mto.report().total_fallbacks == 2


@BY_FAULT
def test_small_problems_do_not_show_it(edit, call, mlx_call):
    """That the faults here are of the kind that only a large problem finds."""
    with emulated_metal() as run:
        expected = call(route="ours")
        mx.eval(expected)
    with emulated_metal(edit_source=edit) as run:
        found = call(route="ours")
        mx.eval(found)
    assert same(found, expected) and len(run.launches) == 1


@BY_FAULT
def test_force_fused_says_what_is_wrong(edit, call, mlx_call):
    with emulated_metal(edit_source=edit, verify=True):
        with (
            pytest.warns(KernelWarning),
            pytest.raises(ValueError, match=r"force_fused must be .*, got kernel .* are wrong, at"),
        ):
            call(force_fused=True)


def test_a_right_kernel_is_trusted_and_not_verified_twice(verdicts_folder):
    with emulated_metal(verify=True) as run:
        for shape in ((8, 128), (8, 128), (3, 5, 256)):
            mx.eval(mto.quantize(mx.random.normal(shape), force_fused=True))
        assert verdicts() == [Verdict("mlx_tensorops_quantize_affine_float_4_64", "", False)]
    assert len(run.launches) == 3 and len(run.trials) == 2
    assert len(list(verdicts_folder.iterdir())) == 1
    assert [(row.outcome, row.count) for row in mto.report().ops] == [("fused", 3)]


def test_each_kernel_has_its_verdict():
    with emulated_metal(verify=True) as run:
        for rows, n_trials in ((1, 2), (40, 4), (1, 4), (2, 6), (50, 6), (64, 8)):
            mx.eval(mto.quantized_matmul(mx.ones((rows, 512)), *PACKED, force_fused=True))
            assert len(run.trials) == n_trials
        assert len(verdicts()) == 4
    assert all("few_rows" in launch.kernel for launch in run.trials[:2])
    assert all("tiles" in launch.kernel for launch in run.trials[2:4])


def test_a_wrong_kernel_does_not_stop_another():
    with emulated_metal(
        edit_source=lambda s: s.replace(*("= T(total[c]);", "= T(0);")), verify=True
    ):
        with pytest.warns(KernelWarning, match="few_rows_t"):
            mto.quantized_matmul(X[:1], *PACKED, route="ours")
        mx.eval(mto.quantized_matmul(X, *PACKED, force_fused=True))


# Bits, group, dtypes of x, scales, biases, rows, transposed, precision: each kind of kernel.
F32, F16, BF16 = mx.float32, mx.float16, mx.bfloat16
RIGHT = [
    (1, 32, (F32, F32, F32), 1, True, None),
    (2, 64, (BF16, BF16, BF16), 33, False, None),
    (3, 128, (F16, F16, F16), 65, True, None),
    (4, 32, (F32, F16, BF16), 64, False, None),
    (5, 64, (F16, F32, F32), 8, False, None),
    (6, 128, (BF16, F32, F16), 17, True, None),
    (8, 32, (BF16, BF16, BF16), 96, True, None),
    (8, 64, (F32, F32, F32), 64, True, None),
    (8, 128, (F32, F32, F32), 65, True, "tf32"),
]


@pytest.mark.parametrize(("layout", "order"), [("m5", "forward"), ("random", "random")])
@pytest.mark.parametrize(("bits", "group", "dtypes", "rows", "transpose", "precision"), RIGHT)
def test_right_kernels_pass(bits, group, dtypes, rows, transpose, precision, layout, order):
    x_dtype, scales_dtype, biases_dtype = dtypes
    w_q, scales, biases = mx.quantize(mx.random.normal((256, 256)), group, bits)
    packed = (w_q, scales.astype(scales_dtype), biases.astype(biases_dtype))
    x = mx.random.normal((rows, 256)).astype(x_dtype)
    with emulated_metal(layout, order, 3, verify=True) as run:
        y = mto.quantized_matmul(
            x, *packed, transpose, group, bits, precision=precision, force_fused=True
        )
        mx.eval(y, mto.dequantize(*packed, group, bits, dtype=x_dtype, force_fused=True))
        assert [verdict.fault for verdict in verdicts()] == ["", ""]
    assert len(run.trials) == 4 and len(run.launches) == 2


def test_tf32_unasked_is_found():
    """Products of float32 that keep 11 bits: what small whole numbers alone would not show."""
    edit = replaced(
        "const int n_steps",
        "for (int i = 0; i < n_rows * k; ++i) {"
        "  x[i] = T(as_type<float>(as_type<uint>(float(x[i])) & 0xffffe000u));"
        "}"
        "const int n_steps",
    )
    with emulated_metal(edit_source=edit, verify=True):
        with pytest.warns(KernelWarning, match="values are wrong"):
            mto.quantized_matmul(X, *PACKED, route="ours")
        mx.eval(mto.quantized_matmul(X, *PACKED, precision="tf32", force_fused=True))


def test_a_kernel_that_does_not_compile(verdicts_folder):
    def broken(source):
        return source + "\n#error no such thing as this\n"

    for _ in range(2):
        with emulated_metal(edit_source=broken, verify=True) as run:
            with pytest.warns(KernelWarning, match=r"it cannot be run \(.*no such thing as this"):
                found = mto.dequantize(*PACKED, route="ours")
            with pytest.raises(ValueError, match="no such thing as this"):
                mto.dequantize(*PACKED, force_fused=True)
        assert mx.array_equal(found, mx.dequantize(*PACKED))
        assert run.launches == []
        # It may have been the moment's fault, as of a compiler that ran out of memory.
        assert not verdicts_folder.exists()


def test_a_kernel_that_fails_when_it_runs():
    """Beyond its buffers, on the large problem alone."""
    edit = replaced("out[i * mto::kRun + j]", "out[(i < 100000 ? i : 2 * i) * mto::kRun + j]")
    with emulated_metal(edit_source=edit, verify=True):
        with pytest.warns(KernelWarning, match=r"it cannot be run \("):
            found = mto.dequantize(*PACKED, route="ours")
    assert mx.array_equal(found, mx.dequantize(*PACKED))


def test_off_unless_asked_for():
    with emulated_metal(edit_source=WRONG_ROWS) as run:
        mx.eval(mto.dequantize(*PACKED, force_fused=True))
        assert verdicts() == []
    assert len(run.launches) == 1 and run.trials == []


@pytest.mark.parametrize(("value", "n_trials"), [("0", 0), ("1", 2), ("", 2)])
def test_opt_out(value, n_trials, monkeypatch):
    monkeypatch.setenv("MLX_TENSOROPS_VERIFY", value)
    with emulated_metal(verify=True) as run:
        mx.eval(mto.dequantize(*PACKED, force_fused=True))
    assert len(run.launches) == 1 and len(run.trials) == n_trials


def test_of_a_patched_model():
    layer = nn.QuantizedLinear(512, 8, bias=False)
    expected = layer(X[:2])
    with emulated_metal(edit_source=WRONG_COLUMNS, verify=True), mto.patched(layer, route="ours"):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = layer(X[:2])
            layer(X[:2])
        mx.eval(found)
    assert [w.category for w in warned] == [KernelWarning]
    assert mx.array_equal(found, expected)
    (row,) = mto.report().modules
    assert (row.fused, row.n_fallbacks, row.n_by_choice) == (0, 2, 0)
    assert next(iter(row.fallbacks)).startswith("kernel mlx_tensorops_quantized_matmul_few_rows_t")


def test_random_numbers_of_the_program_stay():
    mx.random.seed(7)
    expected = mx.random.normal((4,))
    mx.random.seed(7)
    with emulated_metal(verify=True):
        mto.quantize(W, force_fused=True)
    assert mx.array_equal(mx.random.normal((4,)), expected)


def test_threads_wait_for_one_verdict():
    failures = []

    def call():
        try:
            stream = mx.new_stream(mx.cpu)
            found = mto.dequantize(*PACKED, force_fused=True, stream=stream)
            mx.eval(found)
            assert mx.allclose(found, mx.dequantize(*PACKED), atol=1e-5)
        except Exception as error:
            failures.append(error)

    mx.eval(PACKED)
    with emulated_metal(verify=True) as run:
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert len(run.trials) == 2 and len(run.launches) == 4


def test_a_warning_made_an_error():
    with emulated_metal(edit_source=WRONG_ROWS, verify=True):
        with pytest.raises(KernelWarning, match="is not used on"):
            mto.dequantize(*PACKED, route="ours")
        # Said once; the kernel stays out of use.
        assert mx.array_equal(mto.dequantize(*PACKED, route="ours"), mx.dequantize(*PACKED))


def test_the_extension_is_left_clean():
    with emulated_metal(verify=True):
        mto.quantize(W, force_fused=True)
    assert verdicts() == []


def test_what_an_earlier_result_left_in_memory_is_no_result():
    """The second kernel writes nothing, into memory that the first has filled rightly."""
    writes = "out[i * mto::kRun + j] = T(fma("
    for edit in (str, lambda text: text.replace(writes, "if (scale == 12345.0f) " + writes)):
        with emulated_metal(edit_source=edit, verify=True):
            for _ in range(2):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", KernelWarning)
                    mx.eval(mto.dequantize(*PACKED, route="ours"))
            (verdict,) = verdicts()
        assert (verdict.fault == "") == (edit is str)


def test_results_that_a_kernel_does_not_write_are_nan():
    writes = "out[i * mto::kRun + j] = T(fma("
    with emulated_metal(edit_source=lambda text: text.replace(writes, "if (false) " + writes)):
        assert mx.isnan(mto.dequantize(*PACKED, route="ours")).all()
