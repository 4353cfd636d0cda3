import re
import shutil
import sys

import mlx.core as mx
import mlx_lm
import pytest
from safe_compile import failure

from mlx_tensorops.cli import compiler
from mlx_tensorops.patch import modules

PROMPT = "the end in "
SPEED = (
    r"prompt: (\d+) tokens, [\d.]+ tok/s; generation: (\d+) tokens, [\d.]+ tok/s; "
    r"peak memory: [\d.]+ MB"
)


def expected_text(folder, *, chat, max_tokens):
    """What mlx-lm itself says, greedily."""
    model, tokenizer = mlx_lm.load(str(folder))
    prompt = PROMPT
    if chat:
        messages = [{"role": "user", "content": PROMPT}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return mlx_lm.generate(model, tokenizer, prompt, max_tokens=max_tokens)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("patch", [True, False])
def test_the_text_is_that_of_mlx_lm(command, tiny_folder, chat, patch):
    options = ["--chat" if chat else "--raw"] + ["--no-patch"] * (not patch)
    arguments = ("generate", "--model", tiny_folder, "--prompt", PROMPT, "--max-tokens", 12)
    result = command(*arguments, *options)
    assert result.exit_code == 0
    assert result.stdout == expected_text(tiny_folder, chat=chat, max_tokens=12) + "\n"
    loading, reading, speed, what_ran = result.stderr.splitlines()
    assert loading == f"loading {tiny_folder} ..."
    n_prompt, n_generated = re.fullmatch(SPEED, speed).groups()
    assert reading == f"reading {n_prompt} prompt tokens ..."
    assert 0 < int(n_generated) <= 12
    if patch:
        pattern = r"patched: 17 modules, (\d+) calls through our ops, 0 fallbacks to MLX's"
        assert int(re.fullmatch(pattern, what_ran)[1]) >= 17
    else:
        assert what_ran == "MLX's own ops (--no-patch)"


def test_a_gguf_file_as_it_is(command, tiny_folder):
    """The blocks of the file, and the values of the folder that it was converted to."""
    arguments = ("--prompt", PROMPT, "--max-tokens", 12, "--raw")
    result = command("generate", "--model", tiny_folder.parent / "tiny.gguf", *arguments)
    assert result.exit_code == 0
    assert result.stdout == expected_text(tiny_folder, chat=False, max_tokens=12) + "\n"
    assert result.stderr.splitlines()[-1].endswith("0 fallbacks to MLX's")


def test_a_file_that_is_no_gguf(command, tiny_folder):
    result = command("generate", "--model", tiny_folder / "config.json", "--prompt", PROMPT)
    assert result.exit_code == 1
    assert "[gguf] path must name a GGUF file" in result.stderr


def test_what_falls_back_is_named(command, tiny_folder, monkeypatch):
    """Calls that no kernel of ours covers: the model runs, and the summary says why."""
    decide = modules.decide

    def without_8_bits(*case):
        decision = decide(*case)
        return decision._replace(reason="bits 8") if 8 in case else decision

    monkeypatch.setattr(modules, "decide", without_8_bits)
    result = command("generate", "--model", tiny_folder, "--prompt", PROMPT, "--max-tokens", 3)
    assert result.exit_code == 0
    *_, patched, reason = result.stderr.splitlines()
    n_fallbacks = re.search(r"17 modules, \d+ calls through our ops, (\d+) fallbacks", patched)[1]
    assert int(n_fallbacks) > 0
    assert reason == f"  {n_fallbacks} fallbacks: bits 8"


def test_sampling_depends_on_the_seed_alone(command, tiny_folder):
    arguments = ("generate", "--model", tiny_folder, "--prompt", PROMPT, "--max-tokens", 8)
    texts = [
        command(*arguments, "--temp", 1.5, "--seed", seed).stdout for seed in (1, 1, 2, 3, 4, 5)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 2


def test_the_prompt_may_come_from_stdin(command, tiny_folder):
    arguments = ("generate", "--model", tiny_folder, "--raw", "--max-tokens", 4, "--prompt")
    assert command(*arguments, "-", input=PROMPT).stdout == command(*arguments, PROMPT).stdout


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--prompt", ""], 1, r"error: \[generate\] prompt must have at least one token, got ''."),
        (["--prompt", "x", "--max-tokens", "0"], 2, "max-tokens"),
        (["--prompt", "x", "--temp", "-1"], 2, "temp"),
        ([], 2, "Missing option '--prompt'"),
    ],
)
def test_wrong_use(command, tiny_folder, options, code, message):
    result = command("generate", "--model", tiny_folder, "--raw", *options)
    assert result.exit_code == code
    assert re.search(message, result.stderr.splitlines()[-1])
    assert not result.stdout


def test_a_folder_without_a_model(command, tmp_path, tiny_folder):
    result = command("generate", "--model", tmp_path / "none", "--prompt", "x")
    assert result.exit_code == 2 and "does not exist" in result.stderr
    result = command("generate", "--model", tmp_path, "--prompt", "x")
    assert result.exit_code == 1
    line = f"error: [generate] model must be a folder with a config.json, got '{tmp_path}'."
    assert result.stderr.splitlines()[-1] == line
    shutil.copytree(tiny_folder, tmp_path / "half")
    for name, start in (("model.safetensors", "FileNotFoundError"), ("config.json", None)):
        (tmp_path / "half" / name).unlink()
        if start is None:
            (tmp_path / "half" / name).write_text("{}")
        result = command("generate", "--model", tmp_path / "half", "--prompt", "x")
        assert result.exit_code == 1
        last = result.stderr.splitlines()[-1]
        assert last.startswith("error: [generate] model must be a folder that mlx-lm can load, got")
        assert start is None or start in last


def test_without_mlx_lm_the_message_names_the_extra(command, tiny_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlx_lm", None)
    result = command("generate", "--model", tiny_folder, "--prompt", "x")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].endswith(": pip install 'mlx-tensorops[demo]'")
    assert "mlx_lm cannot be imported" in result.stderr


class TestCompiler:
    """mx.compile uses the system's g++ on the CPU; where that fails the command goes on."""

    @pytest.fixture(autouse=True)
    def restored(self):
        yield
        if not failure():
            mx.enable_compile()

    @pytest.mark.parametrize(
        ("program", "reason"),
        [
            ("raise ValueError('no\\ncompiler')", "compiler"),
            ("import os; os.abort()", "the process ended with -6"),
            ("import time; time.sleep(60)", "no result after 2 s"),
        ],
    )
    def test_each_way_to_fail_is_a_reason(self, monkeypatch, program, reason):
        monkeypatch.setattr(compiler, "_PROGRAM", program)
        assert compiler.compile_failure(timeout_s=2) == reason

    def test_failure_is_said_once_and_survived(self, command, tiny_folder, monkeypatch):
        monkeypatch.setattr(compiler, "_PROGRAM", "raise SystemExit('g++: not found')")
        arguments = ("generate", "--model", tiny_folder, "--prompt", PROMPT, "--max-tokens", 3)
        result = command(*arguments)
        assert result.exit_code == 0
        notice = "mx.compile does not work here, going on without it: g++: not found"
        assert result.stderr.count(notice) == 1
        plain = expected_text(tiny_folder, chat=True, max_tokens=3)
        assert result.stdout == plain + "\n"

    def test_a_machine_whose_compiler_fails(self, python, tiny_folder, tmp_path):
        """TMPDIR is another one, because compiled functions are kept there from run to run."""
        compiler_path = tmp_path / "bin" / "g++"
        compiler_path.parent.mkdir()
        compiler_path.write_text(
            "#!/bin/sh\n[ $1 = --version ] && exit\necho 'f.cpp:7:1: error: no' >&2\nexit 1\n"
        )
        compiler_path.chmod(0o755)
        done = python(
            *("-m", "mlx_tensorops", "generate", "--model", tiny_folder, "--prompt", PROMPT),
            *("--max-tokens", 3),
            PATH=str(compiler_path.parent),
            TMPDIR=str(tmp_path),
        )
        assert done.returncode == 0, done.stderr
        notice = "mx.compile does not work here, going on without it: f.cpp:7:1: error: no\n"
        assert done.stderr.count(notice) == 1
        assert "Traceback" not in done.stderr
