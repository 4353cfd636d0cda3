"""What ran where: a snapshot of the counts of patched modules and of our ops."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

FUSED = "fused"

# The path of the rows that stand for a whole class, under patch() without a model.
EVERY_MODEL = "(every model)"


@dataclass(frozen=True)
class ModuleRow:
    """One patched module: its calls by who ran them. ``aliases`` are further paths to it."""

    path: str
    class_name: str
    fused: int
    fallbacks: dict[str, int] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()

    @property
    def n_fallbacks(self) -> int:
        """Calls that MLX's own code ran."""
        return sum(self.fallbacks.values())


@dataclass(frozen=True)
class LeftAlone:
    """A quantized module that ``patch`` did not touch, and why."""

    path: str
    class_name: str
    reason: str


@dataclass(frozen=True)
class OpRow:
    """Calls of one op: ``outcome`` is ``"fused"`` or the reason of the fallback."""

    op: str
    backend: str
    outcome: str
    count: int


@dataclass(frozen=True)
class Report:
    """A snapshot: later calls do not change it.

    Inside a function that ``mx.compile`` traced, a module is called once a trace, not once a run,
    and is counted so.
    """

    modules: tuple[ModuleRow, ...]
    left_alone: tuple[LeftAlone, ...]
    ops: tuple[OpRow, ...]

    @property
    def total_fused(self) -> int:
        """Calls of patched modules that our ops ran."""
        return sum(row.fused for row in self.modules)

    @property
    def total_fallbacks(self) -> int:
        """Calls that MLX ran although a patched module, an op of ours or ``drop_in`` was called.

        With ``patch`` and ``drop_in`` on at once, one call may pass, and be counted at, both.
        """
        modules = sum(row.n_fallbacks for row in self.modules)
        return modules + sum(row.count for row in self.ops if row.outcome != FUSED)

    @property
    def never_called(self) -> tuple[ModuleRow, ...]:
        """Patched modules without a call: where a model ran, its compiled function was older."""
        return tuple(
            row
            for row in self.modules
            if not row.fused and not row.fallbacks and row.path != EVERY_MODEL
        )

    def reset(self) -> None:
        """Set the live counts to zero; this snapshot keeps its own."""
        from mlx_tensorops.patch.scopes import reset_report

        reset_report()

    def summary(self) -> str:
        """Render the report as plain text."""
        lines = [
            f"modules patched since the last reset: {len(self.modules)}"
            + (f" ({_by_class(self.modules)})" if self.modules else ""),
            f"module calls through our ops: {self.total_fused}, "
            f"fallbacks to MLX: {self.total_fallbacks}",
        ]
        if self.never_called:
            lines.append(
                f"never called: {len(self.never_called)} (a function that mx.compile traced "
                "before patch() keeps MLX's code)"
            )
        for row in self.modules:
            lines += [
                f"  {row.path} ({row.class_name}): MLX's code ran {count} calls: {reason}"
                for reason, count in sorted(row.fallbacks.items())
            ]
        if self.left_alone:
            lines.append(f"left alone: {len(self.left_alone)}")
            lines += [f"  {row.path} ({row.class_name}): {row.reason}" for row in self.left_alone]
        if self.ops:
            lines.append("ops:")
            lines += [f"  {row.op} [{row.backend}] {row.outcome}: {row.count}" for row in self.ops]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()


def _by_class(rows: tuple[ModuleRow, ...]) -> str:
    counts = Counter(row.class_name for row in rows)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
