"""Layers whose weights stay in any block format, and run through our ops."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlx_tensorops.ops.dequantize import dequantize
from mlx_tensorops.ops.quantize import quantize
from mlx_tensorops.ops.quantized_matmul import quantized_matmul

GroupSize = int | tuple[int, int] | None


class _Block(nn.Module):
    """The arrays and the options of a quantized weight, as the ops take them."""

    def __init__(
        self,
        weight: mx.array,
        scales: mx.array | None = None,
        biases: mx.array | None = None,
        *,
        mode: str,
        group_size: GroupSize = None,
        bits: int | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mode, self.group_size, self.bits = mode, group_size, bits
        self.weight = weight
        if scales is not None:
            self.scales = scales
        if biases is not None:
            self.biases = biases

    def _extra_repr(self) -> str:
        options = f"mode={self.mode}, group_size={self.group_size}, bits={self.bits}"
        return f"weight={self.weight.shape}, {options}"

    def _product(self, x: mx.array) -> mx.array:
        return quantized_matmul(
            x,
            self.weight,
            self.get("scales"),
            self.get("biases"),
            True,
            self.group_size,
            self.bits,
            self.mode,
        )


class BlockLinear(_Block):
    """``nn.Linear`` with a weight in any mode of ``formats()``.

    Args:
        weight: Packed ``(N, K)``, as ``quantize`` or a file has it.
        scales: As the mode has them. Default: ``None``.
        biases: As the mode has them. Default: ``None``.
        mode: The format.
        group_size: As in ``quantize``. Default: ``None``, that of the mode.
        bits: As in ``quantize``. Default: ``None``, that of the mode.
        bias: Of the layer, ``(N,)``. Default: ``None``.

    Example:
        >>> layer = BlockLinear.from_linear(nn.Linear(256, 64), mode="nf4")
        >>> y = layer(mx.random.normal((2, 256)))
    """

    def __init__(self, *arrays: mx.array | None, bias: mx.array | None = None, **options: Any):
        super().__init__(*arrays, **options)  # type: ignore[arg-type]
        if bias is not None:
            self.bias = bias
        self.freeze()

    @classmethod
    def from_linear(cls, linear: nn.Linear, **options: Any) -> BlockLinear:
        """Quantize a layer; options are those of ``quantize``."""
        return cls(*quantize(linear.weight, **options), bias=linear.get("bias"), **options)

    @classmethod
    def from_bitlinear(cls, layer: Any) -> BlockLinear:
        """Take over mlx-lm's ``BitLinear``, which has a kernel for Metal only, in mode "bitnet".

        The weight stays as it is; the scale becomes the multiplier, in float32.
        """
        scale = layer.weight_scale.astype(mx.float32)
        scale = 1 / scale if layer.invert_weight_scales else scale
        return cls(layer.weight, scale, mode="bitnet", bias=layer.get("bias"))

    def __call__(self, x: mx.array) -> mx.array:
        """Apply the layer."""
        y = self._product(x)
        return y + self["bias"] if "bias" in self else y


class BlockEmbedding(_Block):
    """``nn.Embedding`` with a table in a mode whose rows stand alone (not fp8 tiles, not bitnet).

    Args:
        weight: Packed ``(N, K)``, as ``quantize`` or a file has it.
        scales: As the mode has them. Default: ``None``.
        biases: As the mode has them. Default: ``None``.
        mode: The format.
        group_size: As in ``quantize``. Default: ``None``, that of the mode.
        bits: As in ``quantize``. Default: ``None``, that of the mode.
        dtype: Of the rows that are looked up. Default: ``mx.float32``.
    """

    def __init__(
        self, *arrays: mx.array | None, dtype: mx.Dtype = mx.float32, **options: Any
    ) -> None:
        super().__init__(*arrays, **options)  # type: ignore[arg-type]
        scales = self.get("scales")
        if scales is not None and scales.shape[: self.weight.ndim - 1] != self.weight.shape[:-1]:
            raise ValueError(
                "[BlockEmbedding] scales must have the rows of weight "
                f"{self.weight.shape}, got {scales.shape}."
            )
        self.dtype = dtype
        self.freeze()

    def __call__(self, x: mx.array) -> mx.array:
        """Look up the rows of the indices."""
        rows = x.reshape(-1)
        scales, biases = (
            None if (array := self.get(name)) is None else array[rows]
            for name in ("scales", "biases")
        )
        form = (self.group_size, self.bits, self.mode)
        values = dequantize(self.weight[rows], scales, biases, *form, dtype=self.dtype)
        return values.reshape(*x.shape, values.shape[-1])

    def as_linear(self, x: mx.array) -> mx.array:
        """Apply the table as the output projection of a tied model."""
        return self._product(x)
