"""What a launch found out about the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One kind of event, of which the first is described and all are counted.

    Attributes:
        kind: a stable identifier, such as "device_out_of_bounds".
        severity: "note" (legal), "error" (the kernel is wrong) or "fault" (and was stopped).
        message: a sentence.
        kernel: the host name.
        count: how often it happened.
        threadgroup: threadgroup_position_in_grid, None if no thread was running.
        lane: thread_index_in_threadgroup.
        place: file and line of the kernel source, if known.
        other_place: of a race, file and line of the earlier access, of a value that was never set
            those of the variable, if known.
        buffer: index of the buffer concerned.
        argument: the name of that buffer in the kernel.
        byte: offset in the buffer, negative before its begin.
        details: everything that the runtime says.
    """

    kind: str
    severity: str
    message: str
    kernel: str
    count: int
    threadgroup: tuple[int, int, int] | None
    lane: int | None
    place: str | None
    other_place: str | None
    buffer: int | None
    argument: str | None
    byte: int | None
    details: Mapping[str, Any]

    def __str__(self) -> str:
        text = f"kernel {self.kernel}: {self.kind}: {self.message}"
        if self.buffer is not None:
            name = f" ({self.argument})" if self.argument else ""
            size = self.details.get("buffer_bytes")
            text += f"; buffer {self.buffer}{name}"
            text += f", byte {self.byte}" if self.byte is not None else ""
            text += f" of {size}" if size is not None else ""
        if self.threadgroup is not None:
            text += f"; threadgroup {self.threadgroup}"
        if self.lane is not None:
            text += f", lane {self.lane}"
        if self.place:
            text += f", at {self.place}"
        if self.other_place:
            is_race = self.kind.endswith("race")
            text += f", {'against' if is_race else 'declared at'} {self.other_place}"
        return text + (f" ({self.count} times)" if self.count > 1 else "")
