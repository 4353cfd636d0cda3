"""Model files: GGUF as mlx-lm model folders, or as models that keep the file's blocks."""

from mlx_tensorops.io.convert import Conversion, convert_gguf
from mlx_tensorops.io.stored import load_gguf

__all__ = ["Conversion", "convert_gguf", "load_gguf"]
