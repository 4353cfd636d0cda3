"""Where the tests run that need the Metal emulator."""

import sys

import pytest

ELSEWHERE = "the Metal emulator runs on Linux only"


def skip_elsewhere(items, folder):
    """On Linux nothing is skipped: without a compiler the tests fail, and say what to install."""
    if sys.platform == "linux":
        return
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=ELSEWHERE))
