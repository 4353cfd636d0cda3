"""Model files: GGUF as mlx-lm folders or with its blocks as stored; weights of bitsandbytes."""

from mlx_tensorops.io.bitsandbytes import bitsandbytes_weight
from mlx_tensorops.io.convert import Conversion, convert_gguf
from mlx_tensorops.io.stored import load_gguf

__all__ = ["Conversion", "bitsandbytes_weight", "convert_gguf", "load_gguf"]
