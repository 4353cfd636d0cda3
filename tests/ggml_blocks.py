"""Random GGUF blocks: any bytes are codes, only the float16 numbers must be ordinary."""

import gguf
import numpy as np

# Offsets in a block of its float16 numbers, the first being the factor of the codes.
NUMBERS = {
    **{mode: (0,) for mode in ("q4_0", "q5_0", "q8_0", "iq4_nl")},
    **{mode: (0, 2) for mode in ("q4_1", "q5_1", "q4_k", "q5_k")},
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q6_k": (208,),
    "tq1_0": (52,),
    "tq2_0": (64,),
}
# The greatest product of codes and scales in a block.
LARGEST = {
    **{"q4_0": 8, "q4_1": 15, "q5_0": 16, "q5_1": 31, "q8_0": 128, "iq4_nl": 127},
    **{"q2_k": 45, "q3_k": 128, "q4_k": 945, "q5_k": 1953, "q6_k": 4096, "tq1_0": 1, "tq2_0": 2},
}


def random_blocks(
    mode: str, shape: tuple[int, ...], rng: np.random.Generator, magnitude: float = 1.0
) -> np.ndarray:
    """Rows of bytes for values of a shape, of magnitudes up to about ``magnitude``."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[mode.upper()]]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // block, block_bytes), np.uint8)
    for i, place in enumerate(NUMBERS[mode]):
        signs = rng.choice([-1.0, 1.0], blocks.shape[:-1])
        sizes = magnitude / LARGEST[mode] * rng.uniform(0.5, 1, blocks.shape[:-1])
        # A minimum is small, or in q4_1 and q5_1 a number of its own.
        sizes = sizes if i == 0 or mode.endswith("k") else magnitude * rng.uniform(0, 1)
        blocks[..., place : place + 2] = (signs * sizes).astype("<f2")[..., None].view(np.uint8)
    return blocks.reshape(*shape[:-1], shape[-1] // block * block_bytes)


def values(mode: str, octets: np.ndarray) -> np.ndarray:
    """What PyPI gguf decodes them to, float32."""
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(octets, gguf.GGMLQuantizationType[mode.upper()])
