"""What ran where: a snapshot of the counts of patched modules and of our ops."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from mlx_tensorops.patch.routing import is_choice

FUSED = "fused"

# The path of the rows that stand for a whole class, under patch() without a model.
EVERY_MODEL = "(every model)"


@dataclass(frozen=True)
class ModuleRow:
    """One patched module: its calls by who ran them, and why where that was MLX.

    ``by_choice`` are those that the route gave to MLX, ``aliases`` further paths to the module.
    """

    path: str
    class_name: str
    fused: int
    fallbacks: dict[str, int] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    by_choice: dict[str, int] = field(default_factory=dict)

    @property
    def n_fallbacks(self) -> int:
        """Calls that MLX's own code ran because ours could not."""
        return sum(self.fallbacks.values())

    @property
    def n_by_choice(self) -> int:
        """Calls that MLX's own code ran because the route said so."""
        return sum(self.by_choice.values())


@dataclass(frozen=True)
class LeftAlone:
    """A quantized module that ``patch`` did not touch, and why."""

    path: str
    class_name: str
    reason: str


@dataclass(frozen=True)
class OpRow:
    """Calls of one op: ``outcome`` is ``"fused"`` or the reason why MLX's op ran."""

    op: str
    backend: str
    outcome: str
    count: int

    @property
    def is_fallback(self) -> bool:
        """Whether MLX's op ran because ours could not."""
        return self.outcome != FUSED and not is_choice(self.outcome)


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

        Those that a route gave to MLX are not among them. One call may pass, and be counted at, a
        patched module, ``drop_in`` and an op.
        """
        modules = sum(row.n_fallbacks for row in self.modules)
        return modules + sum(row.count for row in self.ops if row.is_fallback)

    @property
    def total_by_choice(self) -> int:
        """Calls that a route gave to MLX, counted like ``total_fallbacks``."""
        modules = sum(row.n_by_choice for row in self.modules)
        return modules + sum(row.count for row in self.ops if is_choice(row.outcome))

    @property
    def never_called(self) -> tuple[ModuleRow, ...]:
        """Patched modules without a call: where a model ran, its compiled function was older."""
        return tuple(
            row
            for row in self.modules
            if not row.fused and not row.fallbacks and not row.by_choice and row.path != EVERY_MODEL
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
        lines += [
            f"module calls left to MLX by choice: {count} ({reason})"
            for reason, count in sorted(_by_choice(self.modules).items())
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


def _by_choice(rows: tuple[ModuleRow, ...]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row.by_choice)
    return counts


def _by_class(rows: tuple[ModuleRow, ...]) -> str:
    counts = Counter(row.class_name for row in rows)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
