"""mlx-lm's own Metal kernels, judged by its own tests, which need Metal for them.

Its tests run in a process that believes in Metal (the plugin metal_kernel_plugin). Some never
evaluate what a kernel gave: program_mlx_lm_kernels.py does.
"""

import re
from importlib.util import find_spec
from pathlib import Path

import mlx_lm_tests
import peer_suites
import pytest
from standin_model import add_to_cache

PROGRAMS = Path(__file__).parent / "mlx_lm_programs"
PLUGIN = ("-p", "mlx_tensorops.testing.metal_kernel_plugin")

# Skipped, or failing, without Metal.
NEED_METAL = {
    "test_kernels.TestKernels": (
        "test_expert_routing test_norm_add_norm test_post_expert_norm_combine test_pre_norm "
        "test_rms_norm_sigmoid_gate"
    ),
    "test_losses.TestLosses": (
        "test_js_div_loss test_js_div_loss_vjp test_kl_div_loss test_kl_div_loss_vjp"
    ),
    "test_muse_spark.TestMuseSpark": (
        "test_forward test_left_padding test_cached_matches_forward test_prefill_input_embeddings"
    ),
    "test_models.TestModels": "test_bitnet test_gated_delta test_gated_delta_masked",
    "test_gated_delta.TestGatedDelta": (
        "test_kill_switch_restores_original_kernel test_masked_generic_matches_ops_reference "
        "test_packed_matches_ops_reference test_small_head_dim_generic_matches_ops_reference "
        "test_unsupported_shapes_fall_back test_vector_gate_generic_matches_ops_reference"
    ),
}
# With Metal, these run kernels, too.
REACH_KERNELS = {
    "test_models.TestModels": (
        "test_gated_delta_contract test_ssm test_granitemoehybrid_padded_batch "
        "test_prism_hadamard_qwen35_matches_qwen3_5"
    ),
    "test_deepseek_v41.TestDeepseekV41": "test_cached_matches_forward",
}
LONG = {
    "test_gated_delta.TestGatedDelta": (
        "test_packed_matches_unpacked test_explicit_tree_matches_simd_sum_kernel"
    ),
}
# Why, and what the failure says.
CANNOT_PASS = {
    "test_models.TestModels::test_switch_linear_global_scale": (
        "it tests MLX's own gather_qmm, which takes a global scale on GPUs only",
        "Global scale is only supported on the GPU",
    ),
    # test_qk_norm_where_rope_is_that_of_metal shows that the reason is the only one.
    "test_kernels.TestKernels::test_qk_norm": (
        "it compares with mx.fast.rope, which rounds angles to bfloat16 on a CPU",
        "self._assert_close(out_q, _rope(q, offset), TOL[dtype])",
    ),
}
# The loss kernels reuse threadgroup memory without a barrier between loads and stores, and one of
# their barriers orders no memory (mem_none): races by the specification, section 6.9.1. Values are
# right all the same where the sum of a simdgroup is smaller than the maximum that it overwrites.
RACES = {"test_losses.TestLosses": ("kl_forward", "kl_backward", "js_forward")}
SMALL = {
    **{scope: NEED_METAL[scope] for scope in ("test_kernels.TestKernels", *RACES)},
    "test_muse_spark.TestMuseSpark": "test_left_padding",
    "test_models.TestModels": "test_gated_delta_masked test_ssm",
    "test_deepseek_v41.TestDeepseekV41": "test_cached_matches_forward",
}
N_PROGRAM = 8  # tests of program_mlx_lm_kernels.py
KERNELS = (
    "attnres_mix bitlinear_matmul deepseek_v41_sinkhorn expert_routing gated_delta_step "
    "gated_delta_step_mask gated_delta_step_packed_btree gated_delta_step_vec "
    "gated_delta_step_vec_mask gated_delta_step_xtree js_backward js_forward kl_backward "
    "kl_forward norm_add norm_add_norm norm_add_norm_pre_norm post_expert_norm_combine qk_norm "
    "qk_norm_rope rms_norm_sigmoid_gate ssm_kernel wkv7_kernel"
)


def listed(*tables):
    pairs = [pair for table in tables for pair in table.items()]
    return [f"{scope}::{name}" for scope, names in pairs for name in names.split()]


def node(test):
    module, _, rest = test.partition(".")
    return f"{module}.py::{rest}"


def launched(run):
    found = re.findall(r"^Metal kernels launched: (.*)$", run.output, re.MULTILINE)
    pairs = [pair.split() for pair in found[0].split(", ")] if found and found[0] != "none" else []
    return {name: int(count) for name, count in pairs}


@pytest.fixture(scope="module")
def suite(request):
    return mlx_lm_tests.folder(request.config.cache)


@pytest.fixture(scope="module")
def run(suite, tmp_path_factory):
    """Everything of the default suite, in one process."""
    first, *others = [*listed(NEED_METAL, REACH_KERNELS), *CANNOT_PASS]
    program = str(PROGRAMS / "program_mlx_lm_kernels.py")
    return run_tests(suite, [first, *others], tmp_path_factory.mktemp("suite"), *PLUGIN, program)


def run_tests(suite, tests, work, *options):
    first, *others = map(node, tests)
    return peer_suites.run(suite / first, work, False, {"HF_HUB_OFFLINE": "1"}, *others, *options)


@pytest.mark.parametrize("test", listed(NEED_METAL, REACH_KERNELS))
def test_of_mlx_lm(test, run):
    assert run.outcomes[test] == "passed", run.output


@pytest.mark.parametrize("test", CANNOT_PASS)
def test_that_cannot_pass(test, run):
    reason, message = CANNOT_PASS[test]
    assert run.outcomes[test] == "failure", f"it passes, although {reason}"
    assert message in run.output


def test_every_kernel_ran(run):
    assert launched(run).keys() == set(KERNELS.split())
    package = Path(find_spec("mlx_lm").origin).parent
    texts = [path.read_text() for path in package.rglob("*.py")]
    # A version with more of them needs more tests.
    assert sum(text.count("mx.fast.metal_kernel(") for text in texts) == 20


def test_values_that_mlx_lm_does_not_test(run):
    # A file outside the suite has no class name.
    ours = {name: outcome for name, outcome in run.outcomes.items() if name.startswith("::")}
    assert len(ours) == N_PROGRAM and set(ours.values()) == {"passed"}, run.output


def test_qk_norm_where_rope_is_that_of_metal(suite, tmp_path):
    test = "test_kernels.TestKernels::test_qk_norm"
    options = ("-p", "float32_rope", "-o", f"pythonpath={PROGRAMS}")
    run = run_tests(suite, [test], tmp_path, *PLUGIN, *options)
    assert run.outcomes == {test: "passed"}, run.output
    assert launched(run) == {"qk_norm": 2, "qk_norm_rope": 4}


@pytest.mark.full
def test_long_ones(suite, tmp_path):
    run = run_tests(suite, listed(LONG), tmp_path, *PLUGIN)
    assert run.passed == set(listed(LONG)), run.output
    assert launched(run).keys() == {
        "gated_delta_step", "gated_delta_step_packed_btree", "gated_delta_step_xtree"
    }  # fmt: skip


@pytest.mark.full
def test_address_spaces(suite, tmp_path):
    program = str(PROGRAMS / "program_mlx_lm_kernels.py")
    run = run_tests(suite, listed(SMALL), tmp_path, *PLUGIN, "--metal-check", program)
    assert len(run.passed) == len(run.outcomes) == len(listed(SMALL)) + N_PROGRAM, run.output


@pytest.mark.full
def test_traced_only_the_losses_race(suite, tmp_path):
    program = str(PROGRAMS / "program_mlx_lm_kernels.py")
    run = run_tests(suite, listed(SMALL), tmp_path, *PLUGIN, "--metal-trace", program)
    failed = run.outcomes.keys() - run.passed
    assert failed == {test for test in listed(SMALL) if test.split("::")[0] in RACES}, run.output
    assert set(re.findall(r"^E +.*Fault: kernel (\w+): threadgroup_race", run.output, re.M)) == {
        kernel for kernels in RACES.values() for kernel in kernels
    }


@pytest.mark.full
@pytest.mark.parametrize("order", ["reverse", "random"])
def test_other_orders(order, suite, tmp_path):
    program = str(PROGRAMS / "program_mlx_lm_kernels.py")
    run = run_tests(suite, listed(SMALL), tmp_path, *PLUGIN, "--metal-order", order, program)
    assert len(run.passed) == len(run.outcomes) == len(listed(SMALL)) + N_PROGRAM, run.output


@pytest.mark.full
def test_without_metal_they_do_not_pass(suite, tmp_path):
    needy = [*listed(NEED_METAL, LONG), *CANNOT_PASS]
    run = run_tests(suite, needy, tmp_path)
    assert run.outcomes.keys() == set(needy)
    assert not run.passed


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    "deepseek_v41 finetune generate models muse_spark prompt_cache server tuner_trainer "
    "tuner_utils utils".split(),
)
def test_nothing_else_is_broken(name, suite, tmp_path):
    home = tmp_path / "hub"
    home.mkdir()
    add_to_cache(home, "mlx-community/Qwen1.5-0.5B-Chat-4bit")
    env = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    path = suite / f"test_{name}.py"
    plain = peer_suites.run(path, tmp_path, False, env)
    (tmp_path / "metal").mkdir()
    metal = peer_suites.run(path, tmp_path / "metal", False, env, *PLUGIN)
    broken = plain.passed - metal.passed
    assert plain.passed and not broken, f"{sorted(broken)}\n{metal.output}"
