"""Every kernel header of MLX's macOS wheel compiles."""

import re

import apple_kernels as ak
import pytest

GEMM = ["utils.h", "steel/gemm/gemm.h"]
GEMM_NAX = ["utils.h", "steel/gemm/gemm_nax.h", "steel/utils/integral_constant.h"]
CONV = ["utils.h", "steel/gemm/mma.h", "steel/conv/conv.h"]
# Headers that MLX compiles together; they include what they need only in part. Kernels whose
# function constants have the same names are in different groups.
GROUPS = {
    "elementwise": [
        *("defines.h", "utils.h", "bf16.h", "bf16_math.h", "complex.h", "cexpf.h", "erf.h"),
        *("expm1f.h", "fp4.h", "fp8.h", "logging.h", "unary_ops.h", "unary.h", "binary_ops.h"),
        *("binary.h", "binary_two.h", "ternary_ops.h", "ternary.h", "copy.h", "arange.h"),
    ],
    "reductions": [
        *("utils.h", "atomic.h", "reduction/ops.h", "reduce_utils.h", "reduce.h"),
        *("binary_ops.h", "scan.h", "softmax.h", "logsumexp.h", "cross_entropy.h"),
        *("sort.h", "searchsorted.h", "dot.h"),
    ],
    "indexing": [
        *("utils.h", "atomic.h", "reduction/ops.h", "indexing/indexing.h", "indexing/gather.h"),
        *("indexing/gather_front.h", "indexing/gather_axis.h", "indexing/scatter.h"),
        *("indexing/scatter_axis.h", "indexing/masked_scatter.h"),
    ],
    "transforms": ["utils.h", "fft.h", "hadamard.h"],
    "gemv": [*GEMM, "gemv.h"],
    "gemv_masked": [*GEMM, "gemv_masked.h"],
    "quantized": [*GEMM, "quantized_utils.h", "quantized.h"],
    "fp_quantized": [*GEMM, "quantized_utils.h", "fp_quantized.h"],
    "quantized_nax": [*GEMM_NAX, "quantized_utils.h", "quantized_nax.h"],
    "fp_quantized_nax": [*GEMM_NAX, "quantized_utils.h", "fp_quantized_nax.h"],
    "sdpa": ["utils.h", "sdpa_vector.h", "sdpa_blocked.h"],
    "gated_delta": ["utils.h", "gated_delta_update.h", "gated_delta_update_vjp.h"],
    "gated_delta_nax": ["utils.h", "gated_delta_nax_ops.h", "gated_delta_update_nax.h"],
    "gated_delta_nax_vjp": ["utils.h", "gated_delta_update_nax_vjp.h"],
}
for name in ("fused", "gather", "masked", "segmented", "splitk"):
    GROUPS[f"gemm_{name}"] = [*GEMM, "steel/utils.h", f"steel/gemm/kernels/steel_gemm_{name}.h"]
for name in ("fused", "gather", "segmented", "splitk", "thin"):
    header = f"steel/gemm/kernels/steel_gemm_{name}_nax.h"
    GROUPS[f"gemm_{name}_nax"] = [*GEMM_NAX, "steel/utils.h", header]
for name in ("attention", "attention_nax"):
    GROUPS[name] = ["utils.h", f"steel/attn/kernels/steel_{name}.h"]
for name in ("conv", "conv_general", "conv_3d"):
    GROUPS[name] = [*CONV, "steel/utils.h", f"steel/conv/kernels/steel_{name}.h"]


@pytest.mark.parametrize("group", GROUPS)
def test_headers_compile(apple, group):
    assert apple(*GROUPS[group]).warnings == ()


def test_no_header_is_left_out():
    folder = ak.include_folder() / "mlx/backend/metal/kernels"
    compiled = {header for headers in GROUPS.values() for header in headers}
    while True:
        text = "".join((folder / header).read_text() for header in compiled)
        included = set(re.findall(r'#include "mlx/backend/metal/kernels/([^"]+)"', text))
        if included <= compiled:
            break
        compiled |= included
    assert compiled == {str(path.relative_to(folder)) for path in folder.rglob("*.h")}
