"""The public ops. Each is its signature, its documentation, and one call into the extension."""

from mlx_tensorops.ops.dequantize import dequantize
from mlx_tensorops.ops.merge_attention import merge_attention
from mlx_tensorops.ops.quantize import quantize
from mlx_tensorops.ops.quantized_matmul import quantized_matmul
from mlx_tensorops.ops.quantized_scaled_dot_product_attention import (
    quantized_scaled_dot_product_attention,
)
from mlx_tensorops.ops.scaled_dot_product_attention import scaled_dot_product_attention

__all__ = [
    "dequantize",
    "merge_attention",
    "quantize",
    "quantized_matmul",
    "quantized_scaled_dot_product_attention",
    "scaled_dot_product_attention",
]
