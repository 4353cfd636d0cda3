"""Fixtures of this folder."""

from cpu_only import on_cpu, other_process, tracing
from safe_compile import compile_only_where_it_works

__all__ = ["compile_only_where_it_works", "on_cpu", "other_process", "tracing"]
