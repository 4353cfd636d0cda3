"""The public ops. Each is its signature, its documentation, and one call into the extension."""

from mlx_tensorops.ops.dequantize import dequantize
from mlx_tensorops.ops.quantize import quantize
from mlx_tensorops.ops.quantized_matmul import quantized_matmul

__all__ = ["dequantize", "quantize", "quantized_matmul"]
