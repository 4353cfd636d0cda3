"""Programs with Metal kernels of their own: the context, the runner, the pytest plugin."""

import os
import subprocess
import sys

import mlx.core as mx
import pytest

from mlx_tensorops.testing import emulator, metal_kernels

PROGRAM = """
import sys
import mlx.core as mx

assert mx.metal.is_available() and mx.default_device() == mx.gpu
kernel = mx.fast.metal_kernel(
    name="twice", input_names=["x"], output_names=["out"],
    source="uint i = thread_position_in_grid.x; out[i] = 2 * x[i];",
)

def twice(x):
    return kernel(
        inputs=[x], grid=(x.size, 1, 1), threadgroup=(32, 1, 1), output_shapes=[x.shape],
        output_dtypes=[x.dtype], stream=mx.gpu,
    )[0]

if __name__ == "__main__":
    print(sys.argv[1:], twice(mx.arange(3)).tolist())
"""
TESTS = """
import mlx.core as mx
import pytest

@pytest.mark.skipif(not mx.metal.is_available(), reason="needs Metal")
def test_twice():
    from program import twice
    assert twice(mx.arange(3)).tolist() == [0, 2, 4]

@pytest.mark.skipif(not mx.metal.is_available(), reason="needs Metal")
def test_race():
    kernel = mx.fast.metal_kernel("race", [], ["out"], "out[0] = thread_position_in_grid.x;")
    (out,) = kernel(
        inputs=[], grid=(64, 1, 1), threadgroup=(64, 1, 1), output_shapes=[(1,)],
        output_dtypes=[mx.int32],
    )
    assert out.item() == 63
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "test_program.py").write_text(TESTS)
    return tmp_path


def python(folder, *arguments):
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def seen():
    return mx.fast.metal_kernel, mx.metal.is_available, mx.gpu, mx.default_device()


def test_programs_see_metal_inside_only():
    before = seen()
    with metal_kernels():
        assert mx.metal.is_available() and mx.default_device() == mx.gpu
        scope = {}
        exec(compile(PROGRAM, "program.py", "exec"), scope)
        with metal_kernels():
            pass
        assert mx.metal.is_available()
    assert seen() == before
    # What was made inside keeps working.
    assert scope["twice"](mx.arange(4)).tolist() == [0, 2, 4, 6]


def test_the_names_are_given_back_after_an_error():
    before = seen()
    with pytest.raises(KeyError), metal_kernels():
        raise KeyError
    assert seen() == before


def test_options_reach_the_kernels():
    source = "uint i = thread_position_in_grid.x; out[0] = i;"
    arguments = {"inputs": [], "grid": (64, 1, 1), "threadgroup": (64, 1, 1)}
    arguments |= {"output_shapes": [(1,)], "output_dtypes": [mx.int32]}
    for order, last in (("forward", 63), ("reverse", 0)):
        with metal_kernels(policies=emulator.Policies(order=order)):
            kernel = mx.fast.metal_kernel("last", [], ["out"], source)
        assert kernel(**arguments)[0].item() == last
    with metal_kernels(check=True):
        kernel = mx.fast.metal_kernel("pointer", [], ["out"], "thread int* p = out; p[0] = 1;")
    with pytest.raises(emulator.CompileError, match="pointer.metal:1"):
        kernel(**arguments)
    with metal_kernels(trace=True):
        kernel = mx.fast.metal_kernel("last", [], ["out"], source)
    with pytest.raises(emulator.Fault, match="race"):
        mx.eval(kernel(**arguments))


def test_the_runner(folder):
    done = python(folder, "-m", "mlx_tensorops.testing", "program.py", "-x", "1")
    assert (done.stdout, done.returncode) == ("['-x', '1'] [0, 2, 4]\n", 0), done.stderr
    done = python(folder, "-m", "mlx_tensorops.testing", "-m", "program", "2")
    assert (done.stdout, done.returncode) == ("['2'] [0, 2, 4]\n", 0), done.stderr
    done = python(folder, "-m", "mlx_tensorops.testing")
    assert done.returncode == 2 and "program.py arguments" in done.stdout
    (folder / "ends.py").write_text("import sys; sys.exit(3)")
    assert python(folder, "-m", "mlx_tensorops.testing", "ends.py").returncode == 3


def test_the_plugin(folder):
    command = ["-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(folder)]
    command += ["-p", "no:cacheprovider", "-rs"]
    without = python(folder, *command)
    assert "2 skipped" in without.stdout, without.stdout + without.stderr
    command += ["-p", "mlx_tensorops.testing.metal_kernel_plugin"]
    plain = python(folder, *command)
    assert "2 passed" in plain.stdout, plain.stdout + plain.stderr
    assert "Metal kernels launched: race 1, twice 1" in plain.stdout
    traced = python(folder, *command, "--metal-trace")
    assert "1 failed, 1 passed" in traced.stdout, traced.stdout + traced.stderr
    assert "kernel race: device_race" in traced.stdout
    for order, outcome in (("forward", "2 passed"), ("reverse", "1 failed, 1 passed")):
        ordered = python(folder, *command, "--metal-order", order)
        assert outcome in ordered.stdout, ordered.stdout + ordered.stderr
