"""Attention's backward kernels are compared with the CPU's before they run."""

from dataclasses import replace

import pytest
from attention_gradients import APART, TOGETHER, Gradients
from planted_faults import replaced

from mlx_tensorops.verification import KernelWarning

CASES = {
    "plain": APART,
    "float32, long rows": TOGETHER.with_options("segments", "softcap", "alibi"),
    "float16, few": replace(TOGETHER, n_q=3, dtype="float16").with_options("added a key"),
    "bfloat16": replace(APART, dtype="bfloat16").with_options("added a head", "alibi", "causal"),
    "documents": replace(APART, dtype="float16").with_options("documents", "block mask"),
}
OF_BACKWARD = "row_end = n_queries;"
# Wrong from query 512 on: there are none in the cases.
FAULT = replaced(OF_BACKWARD, "row_end = query >= 512 ? 0 : n_queries;")


def only_backward(source):
    return FAULT(source) if OF_BACKWARD in source else source


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_right_kernels_pass(case):
    gradients = Gradients(case, verify=True).check()
    assert {launch.kernel for launch in gradients.launches()} <= {
        trial.kernel for trial in gradients.run.trials
    }


def test_a_fault_at_large_sizes_is_found():
    """The gradients are those of MLX's ops then."""
    assert Gradients(APART, edit_source=only_backward).check().launches()
    with pytest.warns(KernelWarning, match="attention_grad.*values are wrong"):
        gradients = Gradients(APART, edit_source=only_backward, verify=True)
    assert not gradients.check().launches()
