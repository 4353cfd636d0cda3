"""What is remembered about kernels, in the user's cache folder."""

import subprocess
import sys
import warnings

import mlx.core as mx
import pytest
from planted_faults import PACKED, WRONG_ROWS

import mlx_tensorops as mto
from mlx_tensorops.testing import emulated_metal
from mlx_tensorops.verification import KernelWarning, Verdict, verdicts


def judged(**options):
    """How many trials a call needs, and the verdict."""
    options = {"verify": True, "architecture": "applegpu_g17g"} | options
    with emulated_metal(**options) as run, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mx.eval(mto.dequantize(*PACKED, route="ours"))
        (verdict,) = verdicts()
    return len(run.trials), verdict


def test_verdicts_are_remembered():
    assert judged() == (2, Verdict(judged()[1].kernel, "", False))
    n_trials, verdict = judged()
    assert (n_trials, verdict.remembered, verdict.fault) == (0, True, "")


def test_wrong_kernels_are_remembered():
    n_trials, first = judged(edit_source=WRONG_ROWS)
    assert n_trials == 2
    with emulated_metal(edit_source=WRONG_ROWS, verify=True) as run:
        with pytest.warns(KernelWarning):
            found = mto.dequantize(*PACKED, route="ours")
        (verdict,) = verdicts()
    assert run.trials == []
    assert verdict == Verdict(first.kernel, first.fault, True)
    assert mx.array_equal(found, mx.dequantize(*PACKED))


@pytest.mark.parametrize(
    "other",
    [
        {"architecture": "applegpu_g16p"},
        {"macos": (26, 3)},
        {"seed": 1},
        {"edit_source": lambda source: source + "\n"},
    ],
    ids=("GPU", "system", "build", "text"),
)
def test_verdicts_hold_for_one(other):
    assert judged()[0] == 2
    assert judged(**other)[0] == 2
    assert judged()[0] == judged(**other)[0] == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda whole: b"",
        lambda whole: whole[:-1],
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole + b"right\n",
        lambda whole: whole.replace(b"right\n", b"wrong: "),
        lambda whole: whole.replace(b"kernel", b"kernal"),
        lambda whole: bytes(range(256)),
    ],
    ids=("empty", "cut", "half", "longer", "no end", "other", "bytes"),
)
def test_spoilt_files_are_written_anew(spoil, verdicts_folder):
    judged()
    (file,) = verdicts_folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(spoil(whole))
    assert judged()[0] == 2
    assert file.read_bytes() == whole
    assert judged()[0] == 0


def test_without_a_folder(verdicts_folder, monkeypatch):
    verdicts_folder.write_text("a file")
    assert [judged()[0], judged()[0]] == [2, 2]
    assert verdicts_folder.read_text() == "a file"
    for name in ("MLX_TENSOROPS_VERDICTS", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    with_folder = {"MLX_TENSOROPS_EMULATOR_CACHE": str(emulator_cache())}
    monkeypatch.setenv(*with_folder.popitem())
    assert [judged()[0], judged()[0]] == [2, 2]


def test_the_users_cache_is_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MLX_TENSOROPS_EMULATOR_CACHE", str(emulator_cache()))
    monkeypatch.delenv("MLX_TENSOROPS_VERDICTS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    judged()
    assert len(list((tmp_path / "xdg/mlx_tensorops/verdicts").iterdir())) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    judged()
    assert len(list((tmp_path / "home/.cache/mlx_tensorops/verdicts").iterdir())) == 1


def emulator_cache():
    from mlx_tensorops.testing.emulator import toolchain

    return toolchain.cache_folder()


PROGRAM = """
import mlx.core as mx, mlx_tensorops as mto
from mlx_tensorops.testing import emulated_metal
from mlx_tensorops.verification import verdicts
mx.set_default_device(mx.cpu)
packed = mx.quantize(mx.ones((8, 512)))
with emulated_metal(verify=True) as run:
    mx.eval(mto.dequantize(*packed, force_fused=True))
    print(len(run.trials), [verdict.fault for verdict in verdicts()])
"""


def start(cwd):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, cwd=cwd
    )


def test_processes_share_verdicts(verdicts_folder, tmp_path):
    together = [start(tmp_path) for _ in range(3)]
    answers = [process.communicate(timeout=300)[0] for process in together]
    # Each that found no verdict made its own; all are the same.
    assert set(answers) <= {"2 ['']\n", "0 ['']\n"} and "2 ['']\n" in answers
    assert len(list(verdicts_folder.iterdir())) == 1
    assert start(tmp_path).communicate(timeout=300)[0] == "0 ['']\n"
    assert judged()[0] == 0
