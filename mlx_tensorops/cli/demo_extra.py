"""Import what only the extra ``demo`` brings."""

from __future__ import annotations

import importlib
import os
from types import ModuleType


def import_demo(name: str) -> ModuleType:
    """Import a module, with an error that says how to get it.

    Args:
        name: The module.

    Returns:
        The module.

    Raises:
        RuntimeError: It is missing, or a package that it needs is.
    """
    # Models are local folders here: nothing may be looked up on a hub, and the library under mlx-lm
    # need not warn that it found no PyTorch.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RuntimeError(
            f"{name} cannot be imported ({error}): pip install 'mlx-tensorops[demo]'"
        ) from error
