"""Bytes that the Metal kernels of other formats than affine move, against what they must."""

import mlx.core as mx
import pytest

import mlx_tensorops as mto
from mlx_tensorops.testing.metal_emulation import emulated_metal

N, K = 128, 512
COLUMNS = 4  # of y, that share a load of x
W, SCALES, X, Y = 0, 1, 6, 7  # buffers of the kernels


@pytest.mark.parametrize("m", (1, 8))
@pytest.mark.parametrize("mode", ("mxfp4", "mxfp8", "nvfp4"))
def test_few_rows(mode, m):
    """Codes once for all rows, x once for four columns, y once; a scale by each lane with codes."""
    w, scales = mx.quantize(mx.random.normal((N, K)), mode=mode)
    x = mx.random.normal((m, K)).astype(mx.float16)
    with emulated_metal(trace=True) as run:
        y = mto.quantized_matmul(x, w, scales, mode=mode, route="ours", force_fused=True)
        mx.eval(y)
    (launch,) = run.launches
    assert "few_rows_t" in launch.kernel
    read = {index: of_buffer[0] for index, of_buffer in launch.buffer_bytes.items()}
    assert read[W] == w.nbytes
    assert read[X] == x.nbytes * N // COLUMNS
    assert launch.buffer_bytes[Y] == (0, y.nbytes)
    least = w.nbytes + scales.nbytes + read[X] + y.nbytes
    assert read[W] + read[SCALES] + read[X] + y.nbytes <= 1.1 * least
