"""Install what pyproject.toml asks for to build, in an image that is too old to run MLX.

MLX's Linux wheels need glibc 2.35, which no x86-64 or arm64 manylinux image has, so pip refuses
them there. To build, only their headers and link names are needed: they are installed as for a
newer machine. The wheel that comes out is tagged as MLX's are.
"""

import platform
import subprocess
import sys
import sysconfig

import tomli


def main() -> None:
    """Install everything into the environment of the running Python."""
    with open("pyproject.toml", "rb") as file:
        requirements = tomli.load(file)["build-system"]["requires"]
    mlx = [requirement for requirement in requirements if requirement.startswith("mlx")]
    others = [requirement for requirement in requirements if not requirement.startswith("mlx")]

    pip = [sys.executable, "-m", "pip", "install"]
    subprocess.run([*pip, "cmake", "ninja", *others], check=True)
    newer = ["--platform", f"manylinux_2_35_{platform.machine()}", "--only-binary=:all:"]
    target = ["--target", sysconfig.get_path("platlib")]
    subprocess.run([*pip, *newer, *target, *mlx], check=True)


if __name__ == "__main__":
    main()
