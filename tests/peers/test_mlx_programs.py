"""Programs written against MLX alone: nothing that passes with MLX's ops may fail with ours."""

from pathlib import Path

import peer_suites
import pytest

pytestmark = pytest.mark.usefixtures("other_process")

FOLDER = Path(__file__).parent / "mlx_programs"


@pytest.mark.parametrize("name", ["program_values", "program_derivatives"])
def test_program(name, tmp_path):
    run = peer_suites.compare(FOLDER / f"{name}.py", tmp_path, None, "-o", f"pythonpath={FOLDER}")
    # These are our own programs: they pass in full, and they reach every op.
    assert set(run.outcomes.values()) == {"passed"}, run.output
    assert min(run.kernels[op] for op in ("quantize", "dequantize", "quantized_matmul")) > 20
