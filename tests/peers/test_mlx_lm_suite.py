"""mlx-lm's own tests, from its source distribution: what passes unpatched must pass on our ops.

Tests that download a model find a tiny quantized llama in its place, so that they run without the
Hub. The files that reach quantized ops run by default, all of them with ``--full``.
"""

from pathlib import Path

import mlx_lm_tests
import peer_suites
import pytest
from standin_model import add_to_cache

pytestmark = pytest.mark.usefixtures("other_process")

REACHING = ("awq", "finetune", "generate", "gptq", "prompt_cache", "utils")
OTHERS = (
    "chat datsets deepseek_v41 evaluate gated_delta gguf kernels losses models muse_spark "
    "muse_spark_inputs sample_utils server tokenizers tool_parsing tuner_trainer tuner_utils"
).split()
STANDIN_FOR = "mlx-community/Qwen1.5-0.5B-Chat-4bit"


@pytest.fixture(scope="module")
def suite(request) -> Path:
    """The tests of the installed version of mlx-lm."""
    return mlx_lm_tests.folder(request.config.cache)


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> dict[str, str]:
    """The environment of an offline Hub client whose cache holds the stand-in."""
    home = tmp_path_factory.mktemp("hf_home")
    add_to_cache(home, STANDIN_FOR)
    return {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize("name", REACHING)
def test_files_that_reach_our_ops(name, suite, hub, tmp_path):
    run = peer_suites.compare(suite / f"test_{name}.py", tmp_path, hub)
    assert run.passed, run.output
    assert run.kernels.get("quantize", 0) + run.kernels.get("quantized_matmul", 0) > 0, run.output


@pytest.mark.full
@pytest.mark.parametrize("name", OTHERS)
def test_other_files(name, suite, hub, tmp_path):
    peer_suites.compare(suite / f"test_{name}.py", tmp_path, hub)


@pytest.mark.full
def test_every_file_is_listed(suite):
    found = {path.stem.removeprefix("test_") for path in suite.glob("test_*.py")}
    assert found == {*REACHING, *OTHERS}
