"""Wider, differentiable quantized ops for MLX, and patches that route models through them."""

from mlx_tensorops import _guard

_guard.check()

from mlx_tensorops.drop_in import drop_in  # noqa: E402
from mlx_tensorops.fake_quantize import fake_quantize  # noqa: E402
from mlx_tensorops.formats import formats  # noqa: E402
from mlx_tensorops.metal_source import metal_source  # noqa: E402
from mlx_tensorops.ops import (  # noqa: E402
    dequantize,
    merge_attention,
    quantize,
    quantized_matmul,
    quantized_scaled_dot_product_attention,
    scaled_dot_product_attention,
)
from mlx_tensorops.patch import patch, patched, report, reset_report, unpatch  # noqa: E402
from mlx_tensorops.user_format import register_format  # noqa: E402

__version__ = "0.1.0"

__all__ = [
    "dequantize",
    "drop_in",
    "fake_quantize",
    "formats",
    "merge_attention",
    "metal_source",
    "patch",
    "patched",
    "quantize",
    "quantized_matmul",
    "quantized_scaled_dot_product_attention",
    "register_format",
    "report",
    "reset_report",
    "scaled_dot_product_attention",
    "unpatch",
]
