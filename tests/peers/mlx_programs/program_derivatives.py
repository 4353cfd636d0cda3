"""Derivatives, refusals, other formats and layers: what programs do around the values.

Run twice by test_mlx_programs.py, with MLX's own ops and with ours in their place.
"""

import math

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.core import dequantize, quantize, quantized_matmul
from program_tools import BITS, assert_near, both_transposes, normal


@pytest.fixture(autouse=True)
def _seeded():
    mx.random.seed(11)


class TestDerivatives:
    @both_transposes
    @pytest.mark.parametrize(("group_size", "bits"), [(32, 2), (64, 4), (128, 8)])
    def test_of_x(self, transpose, group_size, bits):
        options = {"group_size": group_size, "bits": bits}
        packed = quantize(normal(64, 128), **options)
        dense = dequantize(*packed, **options)
        x, cotangent = normal(3, 128 if transpose else 64), normal(3, 64 if transpose else 128)

        def function(x):
            return quantized_matmul(x, *packed, transpose=transpose, **options)

        _, (gradient,) = mx.vjp(function, [x], [cotangent])
        assert_near(gradient, cotangent @ (dense if transpose else dense.T))
        tangent = normal(*x.shape)
        _, (pushed,) = mx.jvp(function, [x], [tangent])
        assert_near(pushed, tangent @ (dense.T if transpose else dense))

    @both_transposes
    @pytest.mark.parametrize(("group_size", "bits"), [(32, 3), (64, 4), (128, 8)])
    def test_of_scales_and_biases(self, transpose, group_size, bits):
        options = {"group_size": group_size, "bits": bits}
        w_q, scales, biases = quantize(normal(64, 128), **options)
        x = normal(3, 128 if transpose else 64)

        def loss(scales, biases):
            y = quantized_matmul(x, w_q, scales, biases, transpose=transpose, **options)
            return (y * mx.sin(y)).sum()

        def composed(scales, biases):
            codes = dequantize(w_q, mx.ones_like(scales), mx.zeros_like(biases), **options)
            groups = codes.reshape(64, -1, group_size)
            dense = (groups * scales[..., None] + biases[..., None]).reshape(64, 128)
            y = x @ (dense.T if transpose else dense)
            return (y * mx.sin(y)).sum()

        actual = mx.grad(loss, argnums=(0, 1))(scales, biases)
        expected = mx.grad(composed, argnums=(0, 1))(scales, biases)
        for gradient, exact in zip(actual, expected, strict=True):
            assert mx.allclose(gradient, exact, rtol=1e-3, atol=1e-3 * mx.abs(exact).max().item())

    def test_of_batches(self):
        packed = quantize(normal(3, 16, 64))
        x = normal(3, 2, 64)
        gradient = mx.grad(lambda x: quantized_matmul(x, *packed).square().sum())(x)
        dense = dequantize(*packed)
        expected = 2 * (x @ mx.swapaxes(dense, -1, -2)) @ dense
        assert_near(gradient, expected)

    def test_of_the_second_order(self):
        packed = quantize(normal(16, 64))
        dense = dequantize(*packed)
        x, direction = normal(1, 64), normal(1, 64)

        def slope(x):
            gradient = mx.grad(lambda x: (quantized_matmul(x, *packed) ** 3).sum())(x)
            return (gradient * direction).sum()

        y = x @ dense.T
        expected = (6 * y * (direction @ dense.T)) @ dense
        assert_near(mx.grad(slope)(x), expected)

    def test_of_packed_weights_is_refused(self):
        w_q, scales, biases = quantize(normal(16, 64))
        with pytest.raises(Exception):  # noqa: B017, MLX's own class is not promised
            gradient = mx.grad(lambda w: quantized_matmul(normal(1, 64), w, scales, biases).sum())
            mx.eval(gradient(w_q))

    def test_of_dequantize(self):
        w_q, scales, biases = quantize(normal(4, 64))
        codes = dequantize(w_q, mx.ones_like(scales), mx.zeros_like(biases))
        cotangent = normal(4, 64)
        _, gradients = mx.vjp(
            lambda scales, biases: dequantize(w_q, scales, biases), [scales, biases], [cotangent]
        )
        assert_near(gradients[0], (codes * cotangent).sum(-1, keepdims=True))
        assert_near(gradients[1], cotangent.sum(-1, keepdims=True))

    def test_of_quantize_reaches_scales(self):
        gradient = mx.grad(lambda w: mx.abs(quantize(w)[1]).sum())(normal(4, 64))
        assert gradient.shape == (4, 64) and mx.abs(gradient).max().item() > 0

    def test_gradients_keep_dtypes(self):
        w_q, scales, biases = quantize(normal(8, 64, dtype=mx.float16))
        x = normal(2, 64, dtype=mx.float16)
        gradients = mx.grad(lambda *a: quantized_matmul(a[0], w_q, a[1], a[2]).sum(), (0, 1, 2))
        assert [g.dtype for g in gradients(x, scales, biases)] == [mx.float16] * 3


class TestRefusals:
    packed = staticmethod(lambda: quantize(normal(32, 128)))

    @pytest.mark.parametrize(
        "call",
        [
            lambda: quantize(normal(128)),
            lambda: quantize(normal(4, 100)),
            lambda: quantize(normal(4, 128), bits=7),
            lambda: quantize(normal(4, 128), bits=9),
            lambda: quantize(normal(4, 128), group_size=48),
            lambda: quantize(normal(4, 128), mode="unknown"),
            lambda: quantize(mx.ones((4, 128), mx.int32)),
            lambda: quantize(mx.ones((4, 128), mx.complex64)),
            lambda: quantize(normal(4, 128), mode="mxfp4", bits=8),
            lambda: quantize(normal(4, 128), mode="nvfp4", group_size=32),
            lambda: quantize(normal(4, 128), global_scale=mx.array(1.0)),
        ],
        ids=range(11),
    )
    def test_quantize(self, call):
        with pytest.raises(ValueError):
            mx.eval(call())

    @pytest.mark.parametrize(
        "change",
        [
            {"biases": None},
            {"bits": 8},
            {"bits": 7},
            {"mode": "unknown"},
            {"mode": "mxfp4"},
            {"w": mx.ones((32, 16))},
            {"scales": mx.ones((32, 3))},
            {"scales": mx.ones((3, 32, 2))},
            {"group_size": 32},
        ],
        ids=str,
    )
    def test_dequantize_and_matmul(self, change):
        arguments = dict(zip(("w", "scales", "biases"), self.packed(), strict=True)) | change
        w = arguments.pop("w")
        with pytest.raises(ValueError):
            quantized_matmul(normal(2, 128), w, **arguments)
        with pytest.raises(ValueError):
            dequantize(w, **arguments)

    @pytest.mark.parametrize(
        ("x_shape", "transpose"), [((2, 64), True), ((2, 128), False), ((127,), True)]
    )
    def test_shapes_of_x(self, x_shape, transpose):
        with pytest.raises(ValueError):
            quantized_matmul(normal(*x_shape), *self.packed(), transpose=transpose)

    def test_batches_that_do_not_match(self):
        with pytest.raises(ValueError):
            quantized_matmul(normal(3, 2, 64), *quantize(normal(4, 8, 64)))

    def test_complex_x(self):
        with pytest.raises(ValueError):
            quantized_matmul(mx.ones((2, 128), mx.complex64), *self.packed())

    def test_integer_output_of_dequantize(self):
        with pytest.raises(ValueError):
            dequantize(*self.packed(), dtype=mx.int32)


class TestOtherFormatsAndOps:
    @pytest.mark.parametrize("mode", ["mxfp4", "nvfp4", "mxfp8"])
    def test_floating_point_formats(self, mode):
        w = normal(32, 128)
        w_q, scales = quantize(w, mode=mode)
        dense = dequantize(w_q, scales, mode=mode, dtype=mx.float32)
        assert mx.linalg.norm(dense - w).item() < 0.2 * mx.linalg.norm(w).item()
        x = normal(3, 128)
        assert_near(quantized_matmul(x, w_q, scales, mode=mode), x @ dense.T)

    @pytest.mark.parametrize("bits", [2, 4, 8])
    def test_gather(self, bits):
        packed = quantize(normal(4, 16, 64), bits=bits)
        dense = dequantize(*packed, bits=bits)
        x, experts = normal(5, 1, 64), mx.array([0, 3, 1, 1, 2])
        y = mx.gather_qmm(x, *packed, rhs_indices=experts, bits=bits)
        assert_near(y, x @ mx.swapaxes(dense[experts], -1, -2))


class TestLayers:
    @pytest.mark.parametrize("bits", BITS)
    def test_linear_from_linear(self, bits):
        linear = nn.Linear(128, 48)
        layer = nn.QuantizedLinear.from_linear(linear, 64, bits)
        dense = dequantize(layer.weight, layer.scales, layer.biases, 64, bits)
        x = normal(2, 5, 128)
        assert_near(layer(x), x @ dense.T + linear.bias)

    @pytest.mark.parametrize("bits", BITS)
    def test_embedding_from_embedding(self, bits):
        embedding = nn.Embedding(30, 128)
        layer = nn.QuantizedEmbedding.from_embedding(embedding, 64, bits)
        dense = dequantize(layer.weight, layer.scales, layer.biases, 64, bits)
        tokens = mx.array([[0, 29], [7, 7]])
        assert_near(layer(tokens), dense[tokens])
        x = normal(3, 128)
        assert_near(layer.as_linear(x), x @ dense.T)

    def test_quantizing_a_model(self):
        model = nn.Sequential(nn.Embedding(20, 64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        tokens = mx.array([[1, 2, 3]])
        expected = model(tokens)
        nn.quantize(model, bits=8, group_size=32)
        assert mx.abs(model(tokens) - expected).max().item() < 0.05
        trainable = model.trainable_parameters()
        assert not any("scales" in str(name) for name in trainable)

    def test_class_predicate_mixes_bits(self):
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        nn.quantize(
            model,
            class_predicate=lambda path, _: {"bits": 8 if "0" in path else 4} if path else False,
        )
        assert [layer.bits for layer in model.layers] == [8, 4]
        assert model(normal(1, 64)).shape == (1, 64)

    def test_training_around_a_frozen_layer(self):
        layer, head = nn.QuantizedLinear(64, 32), nn.Linear(32, 1)
        model = nn.Sequential(nn.Linear(64, 64), layer, nn.Tanh(), head)
        x, y = normal(16, 64), normal(16, 1)
        step = nn.value_and_grad(model, lambda model: (model(x) - y).square().mean())
        losses = []
        for _ in range(5):
            loss, gradients = step(model)
            model.update(
                nn.utils.tree_map(
                    lambda p, g: p - 0.05 * g, model.trainable_parameters(), gradients
                )
            )
            losses.append(loss.item())
        assert losses[-1] < losses[0] and all(map(math.isfinite, losses))
