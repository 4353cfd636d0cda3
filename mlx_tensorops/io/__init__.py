"""Model files: GGUF to mlx-lm model folders."""

from mlx_tensorops.io.convert import Conversion, convert_gguf

__all__ = ["Conversion", "convert_gguf"]
