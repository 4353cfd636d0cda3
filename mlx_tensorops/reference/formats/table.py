"""Every mode, by name: what decodes it."""

from typing import Protocol

from mlx_tensorops.reference.formats import affine, codebook, fp8, ggml, microscaling, ternary
from mlx_tensorops.reference.formats.packed import Packed
from mlx_tensorops.reference.formats.terms import Terms


class Format(Protocol):
    """What a mode is at least."""

    def decode(self, packed: Packed) -> Terms:
        """The parts of the values."""
        ...


FORMATS: dict[str, Format] = {
    "affine": affine.Affine(),
    **microscaling.MODES,
    **fp8.MODES,
    **codebook.MODES,
    **ternary.MODES,
    **ggml.MODES,
}
