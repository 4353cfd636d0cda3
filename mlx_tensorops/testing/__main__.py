"""Run a program with Metal kernels of its own where there is no Metal.

::

python -m mlx_tensorops.testing program.py arguments...
python -m mlx_tensorops.testing -m module arguments...
"""

from __future__ import annotations

import runpy
import sys

from mlx_tensorops.testing import metal_kernels


def main(arguments: list[str]) -> int:
    """Run the program of the arguments; the exit status."""
    is_module = arguments[:1] == ["-m"]
    sys.argv = arguments[1:] if is_module else arguments
    if not sys.argv or sys.argv[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if sys.argv else 2
    with metal_kernels():
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
