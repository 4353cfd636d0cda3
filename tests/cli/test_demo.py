"""The demo as `make demo` runs it."""

import json
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "demo" / "smollm2.py"


def test_demo_generates_through_our_ops_and_agrees(python, tmp_path):
    done = python(DEMO, "--max-tokens", 6, "--json", tmp_path / "results.json")
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    for row in (results["patched"], results["mlx"]):
        assert row["text"] == "The capital of France is Paris"
        assert row["n_prompt"] == 44 and row["n_generated"] == 6
        assert row["prefill_tps"] > 0 and row["decode_tps"] > 0
        assert row["text"] in done.stdout
    assert results["modules_patched"] == 241 and results["fallbacks"] == {}
    logits = results["logits"]
    for pair in ("patched_to_float64", "mlx_to_float64", "patched_to_mlx"):
        assert 0 < logits[pair]["largest"] < 2e-5 * logits["largest"], pair
        assert 0 < logits[pair]["rms"] < 1e-5 * logits["rms"], pair


def test_demo_without_a_network_says_so_in_one_line(python, tmp_path):
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    cache = {"MLX_TENSOROPS_CACHE": str(tmp_path / "cache")}
    done = python(DEMO, PIP_NO_CACHE_DIR="1", **nowhere, **cache)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: pip could not download")
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "cache").iterdir())
