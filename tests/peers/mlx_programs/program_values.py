"""Values that programs rely on: what quantize, dequantize and quantized_matmul return.

Run twice by test_mlx_programs.py, with MLX's own ops and with ours in their place.
"""

import threading

import mlx.core as mx
import numpy as np
import pytest
from mlx.core import dequantize, quantize, quantized_matmul
from program_tools import BITS, FLOATS, assert_near, both_transposes, every_format, normal


@pytest.fixture(autouse=True)
def _seeded():
    mx.random.seed(11)


def check_matmul(x: mx.array, w: mx.array, transpose: bool, **options) -> None:
    packed = quantize(w, **options)
    dense = dequantize(*packed, **options)
    y = quantized_matmul(x, *packed, transpose=transpose, **options)
    assert y.dtype == x.dtype
    x, dense = x.astype(mx.float32), dense.astype(mx.float32)
    assert_near(y, x @ (mx.swapaxes(dense, -1, -2) if transpose else dense), y.dtype)


class TestQuantize:
    @every_format
    def test_error_is_within_half_a_step(self, group_size, bits):
        w = normal(16, 256)
        w_q, scales, biases = quantize(w, group_size, bits)
        assert w_q.dtype == mx.uint32 and w_q.shape == (16, 256 * bits // 32)
        assert scales.shape == biases.shape == (16, 256 // group_size)
        steps = mx.repeat(mx.abs(scales), group_size, axis=-1)
        error = mx.abs(dequantize(w_q, scales, biases, group_size, bits) - w)
        if bits > 1:
            assert mx.all(error <= steps * 1.01 + 1e-6)
        else:
            assert mx.all(error <= steps)

    @every_format
    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    def test_dtypes(self, group_size, bits, dtype):
        packed = quantize(normal(4, 128, dtype=dtype), group_size, bits)
        assert [part.dtype for part in packed] == [mx.uint32, dtype, dtype]
        assert dequantize(*packed, group_size, bits).dtype == dtype
        for other in FLOATS:
            assert dequantize(*packed, group_size, bits, dtype=other).dtype == other

    @every_format
    def test_extremes_survive(self, group_size, bits):
        """The value of the greatest magnitude of a group is a code of its own; zero is one too."""
        w = normal(8, 256).reshape(8, -1, group_size)
        w[..., 0] = 0
        values = dequantize(*quantize(w.flatten(1), group_size, bits), group_size, bits)
        values = values.reshape(w.shape)
        edge = mx.argmax(mx.abs(w), axis=-1, keepdims=True)
        assert_near(mx.take_along_axis(values, edge, -1), mx.take_along_axis(w, edge, -1))
        if bits > 1:
            assert mx.abs(values[..., 0]).max().item() < 1e-6

    @every_format
    def test_zeros_stay_zeros(self, group_size, bits):
        options = {"group_size": group_size, "bits": bits}
        values = dequantize(*quantize(mx.zeros((4, 128)), **options), **options)
        assert mx.abs(values).max().item() <= 1e-6

    @every_format
    def test_constant_groups(self, group_size, bits):
        options = {"group_size": group_size, "bits": bits}
        constant = mx.repeat(mx.array([[-3.0, 0.5, 2.0, 7.0]]), 128, axis=-1)
        assert_near(dequantize(*quantize(constant, **options), **options), constant)

    @pytest.mark.parametrize("shape", [(2, 64), (1, 3, 64), (2, 2, 2, 128), (1, 1024)])
    def test_leading_dimensions(self, shape):
        w = normal(*shape)
        w_q, scales, biases = quantize(w)
        assert w_q.shape[:-1] == scales.shape[:-1] == biases.shape[:-1] == w.shape[:-1]
        assert dequantize(w_q, scales, biases).shape == shape

    @pytest.mark.parametrize(
        "view",
        [
            lambda w: w.T,
            lambda w: w[::2, :64],
            lambda w: w[:, ::2],
            lambda w: mx.broadcast_to(w[:1], (5, 128)),
            lambda w: w[::-1],
        ],
        ids=["transposed", "block", "every other", "broadcast", "reversed"],
    )
    def test_views(self, view):
        w = view(normal(128, 128))
        copied = mx.array(np.array(w))
        for part, expected in zip(quantize(w), quantize(copied), strict=True):
            assert mx.array_equal(part, expected)

    def test_views_of_the_packed_form(self):
        packed = quantize(normal(16, 256), bits=3)
        rows = [part[3:12:2] for part in packed]
        assert mx.array_equal(dequantize(*rows, bits=3), dequantize(*packed, bits=3)[3:12:2])
        tables = [part[mx.array([[1, 5], [5, 9]])] for part in packed]
        assert dequantize(*tables, bits=3).shape == (2, 2, 256)

    def test_positional_order_and_defaults(self):
        w = normal(4, 128)
        named = quantize(w, group_size=64, bits=4, mode="affine")
        for packed in (quantize(w), quantize(w, 64, 4, "affine"), quantize(w, None, None)):
            assert all(mx.array_equal(a, b) for a, b in zip(packed, named, strict=True))
        values = dequantize(*named, 64, 4, "affine", None, mx.float16)
        assert values.dtype == mx.float16
        y = quantized_matmul(normal(2, 128), *named, True, 64, 4, "affine", stream=mx.cpu)
        assert y.shape == (2, 4)

    @pytest.mark.parametrize("bits", BITS)
    def test_packing_is_a_stream_of_bits(self, bits):
        codes = np.arange(64) * 37 % 2**bits
        stream = sum(int(code) << (bits * i) for i, code in enumerate(codes))
        words = [(stream >> (32 * i)) & 0xFFFFFFFF for i in range(2 * bits)]
        w_q = mx.array(np.array([words], np.uint32))
        values = dequantize(w_q, mx.ones((1, 1)), mx.zeros((1, 1)), 64, bits)
        assert values.tolist() == [codes.tolist()]


class TestMatmul:
    @every_format
    @both_transposes
    def test_formats(self, group_size, bits, transpose):
        for rows in (1, 3, 32):
            w = normal(128, 256)
            x = normal(rows, 256 if transpose else 128)
            check_matmul(x, w, transpose, group_size=group_size, bits=bits)

    @pytest.mark.parametrize("dtype", FLOATS, ids=str)
    @both_transposes
    def test_dtypes(self, dtype, transpose):
        w, x = normal(64, 128, dtype=dtype), normal(5, 128 if transpose else 64, dtype=dtype)
        for bits in (2, 4, 8):
            check_matmul(x, w, transpose, bits=bits)

    @pytest.mark.parametrize("n_rows", [1, 2, 7, 8, 15, 31, 33, 64, 129])
    @both_transposes
    def test_few_and_many_rows(self, n_rows, transpose):
        check_matmul(normal(n_rows, 192 if transpose else 96), normal(96, 192), transpose)

    @pytest.mark.parametrize("n_outputs", [1, 2, 5, 7, 31, 33, 96, 250])
    def test_widths_of_the_output(self, n_outputs):
        for n_rows in (1, 9):
            check_matmul(normal(n_rows, 128), normal(n_outputs, 128), True)

    @pytest.mark.parametrize("n_inner", [32, 64, 96, 160, 480, 1056])
    @both_transposes
    def test_widths_of_the_sum(self, n_inner, transpose):
        w = normal(48, n_inner) if transpose else normal(n_inner, 64)
        for n_rows in (1, 5):
            check_matmul(normal(n_rows, n_inner), w, transpose, group_size=32)

    def test_long_sums_with_few_outputs(self):
        for bits in (4, 8):
            check_matmul(normal(1, 2048), normal(2048, 128), False, bits=bits)
            check_matmul(normal(1, 4096), normal(16, 4096), True, bits=bits)

    @pytest.mark.parametrize(
        ("x_shape", "w_shape"),
        [
            ((128,), (16, 128)),
            ((2, 3, 128), (16, 128)),
            ((2, 1, 3, 128), (16, 128)),
            ((3, 2, 128), (3, 16, 128)),
            ((2, 3, 1, 128), (2, 3, 16, 128)),
            ((3, 2, 128), (1, 16, 128)),
            ((1, 2, 128), (3, 16, 128)),
            ((4, 1, 2, 128), (3, 16, 128)),
        ],
        ids=str,
    )
    def test_batches(self, x_shape, w_shape):
        check_matmul(normal(*x_shape), normal(*w_shape), True)
        if len(x_shape) > 1:
            check_matmul(normal(*x_shape[:-1], 16), normal(*w_shape), False)

    def test_views(self):
        packed = quantize(normal(64, 128))
        dense = dequantize(*packed)
        base = normal(128, 6, 4)
        for x in (base.T, base.transpose(1, 2, 0)[::2], mx.broadcast_to(base[:, 0, 0], (3, 128))):
            assert_near(quantized_matmul(x, *packed), x @ dense.T)
        every_other = [part[::2] for part in packed]
        assert_near(quantized_matmul(base.T, *every_other), base.T @ dense[::2].T)
        heads = quantize(normal(2, 8, 4, 64))
        swapped = [part.transpose(0, 2, 1, 3) for part in heads]
        x = normal(2, 4, 3, 64)
        expected = x @ dequantize(*heads).transpose(0, 2, 3, 1)
        assert_near(quantized_matmul(x, *swapped), expected)

    def test_zero_input(self):
        packed = quantize(normal(8, 64))
        assert mx.array_equal(quantized_matmul(mx.zeros((3, 64)), *packed), mx.zeros((3, 8)))

    def test_integer_input(self):
        packed = quantize(normal(8, 64))
        x = mx.array(np.arange(64)[None])
        assert_near(quantized_matmul(x, *packed), x.astype(mx.float32) @ dequantize(*packed).T)

    def test_scales_of_another_dtype_decide_the_output(self):
        w_q, scales, biases = quantize(normal(8, 64))
        x = normal(2, 64, dtype=mx.float16)
        assert quantized_matmul(x, w_q, scales, biases).dtype == mx.float32
        half = scales.astype(mx.float16), biases.astype(mx.float16)
        assert quantized_matmul(x.astype(mx.float32), w_q, *half).dtype == mx.float32
        assert quantized_matmul(x.astype(mx.bfloat16), w_q, *half).dtype == mx.float32

    def test_compiled(self):
        packed = quantize(normal(32, 128))
        function = mx.compile(lambda x: mx.exp(-mx.abs(quantized_matmul(x, *packed))))
        for _ in range(2):
            x = normal(3, 128)
            assert_near(function(x), mx.exp(-mx.abs(x @ dequantize(*packed).T)))
        rows = mx.compile(lambda x: quantized_matmul(x, *packed), shapeless=True)
        assert [rows(normal(n, 128)).shape for n in (2, 5)] == [(2, 32), (5, 32)]

    def test_on_a_stream_of_its_own(self):
        packed = quantize(normal(32, 128))
        x = normal(3, 128)
        mx.eval(packed, x)
        stream = mx.new_stream(mx.cpu)
        y = quantized_matmul(x, *packed, stream=stream)
        mx.synchronize(stream)
        assert_near(y, x @ dequantize(*packed).T)

    def test_from_threads(self):
        packed = quantize(normal(32, 128))
        x = normal(3, 128)
        expected = x @ dequantize(*packed).T
        mx.eval(packed, x, expected)
        failures = []

        def run():
            with mx.stream(mx.new_stream(mx.cpu)):
                for _ in range(10):
                    if not mx.allclose(quantized_matmul(x, *packed), expected, atol=1e-4):
                        failures.append(threading.get_ident())

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
