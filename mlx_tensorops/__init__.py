"""Wider, differentiable quantized ops for MLX, and patches that route models through them."""

from mlx_tensorops import _guard

_guard.check()

from mlx_tensorops.drop_in import drop_in  # noqa: E402
from mlx_tensorops.ops import dequantize, quantize, quantized_matmul  # noqa: E402
from mlx_tensorops.patch import patch, patched, report, reset_report, unpatch  # noqa: E402

__version__ = "0.1.0"

__all__ = [
    "dequantize",
    "drop_in",
    "patch",
    "patched",
    "quantize",
    "quantized_matmul",
    "report",
    "reset_report",
    "unpatch",
]
