"""The command line as a process of its own."""


def test_module_prints_text_alone_on_stdout(python, tiny_folder):
    arguments = ("--model", tiny_folder, "--prompt", "the end", "--max-tokens", 5, "--raw")
    done = python("-m", "mlx_tensorops", "generate", *arguments)
    assert done.returncode == 0, done.stderr
    assert "tok/s" in done.stderr and "tok/s" not in done.stdout
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr


def test_help_names_the_commands(python):
    done = python("-m", "mlx_tensorops", "--help")
    assert done.returncode == 0
    for name in ("info", "convert", "generate", "python -m mlx_tensorops"):
        assert name in done.stdout
    assert python("-m", "mlx_tensorops", "no-such-command").returncode == 2
