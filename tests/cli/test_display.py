from io import StringIO

import pytest
from rich.console import Console

from mlx_tensorops.cli.display import Display


def test_elsewhere_a_stage_is_one_plain_line():
    console = Console(file=StringIO(), width=20)
    display = Display(console)
    with display.stage("reading [bold] a long name") as update:
        for done in range(100):
            update(done, 100)
    display.note("done [1]")
    assert console.file.getvalue() == "reading [bold] a long name ...\ndone [1]\n"


def test_on_a_terminal_a_stage_is_a_bar_with_the_count():
    console = Console(file=StringIO(), force_terminal=True, width=80)
    with Display(console).stage("reading [bold]") as update:
        update(3, 20)
    shown = console.file.getvalue()
    assert "reading [bold]" in shown and "3/20" in shown


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_failure_inside_a_stage_gets_out(is_terminal):
    console = Console(file=StringIO(), force_terminal=is_terminal)
    with pytest.raises(KeyError), Display(console).stage("working"):
        raise KeyError
