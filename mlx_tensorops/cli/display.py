"""Progress on stderr, so that stdout holds nothing but results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    Task,
    TextColumn,
)
from rich.text import Text

Update = Callable[[int, int], None]


class Display:
    """Shows stages of work: live bars on a terminal, one plain line a stage elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)

    def note(self, text: str) -> None:
        """Print a line as it is."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def stage(self, title: str) -> Iterator[Update]:
        """Show that something is being done.

        Args:
            title: What, as "reading the prompt".

        Yields:
            A function to call with the steps done and their total, when these are known.
        """
        if not self._console.is_terminal:
            self.note(f"{title} ...")
            yield lambda done, total: None
            return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Count(),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            task = progress.add_task(title, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)


class _Count(MofNCompleteColumn):
    """Steps done of their total, nothing while the total is unknown."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)
