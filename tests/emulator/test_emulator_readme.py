"""The code in the emulator's README runs, in order, as one program."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "csrc" / "emulator" / "README.md"


def test_code_blocks_run():
    text = README.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert len(blocks) == 10
    names: dict[str, object] = {}
    for block in blocks:
        # At its own line, so that a failure names the line of the README.
        padding = "\n" * text[: block.start(1)].count("\n")
        exec(compile(padding + block.group(1), str(README), "exec"), names)
