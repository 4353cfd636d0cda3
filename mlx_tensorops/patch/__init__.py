"""Route the layers of MLX models through our ops, reversibly, and say what ran where."""

from mlx_tensorops.patch.records import PatchWarning
from mlx_tensorops.patch.report import LeftAlone, ModuleRow, OpRow, Report
from mlx_tensorops.patch.scopes import patch, patched, report, reset_report, unpatch

__all__ = [
    "LeftAlone",
    "ModuleRow",
    "OpRow",
    "PatchWarning",
    "Report",
    "patch",
    "patched",
    "report",
    "reset_report",
    "unpatch",
]
