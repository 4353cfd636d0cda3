"""Typed look-ups in GGUF metadata, each with an error that names the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _require(metadata: Mapping[str, Any], key: str) -> Any:
    if key not in metadata:
        raise ValueError(f"[convert] metadata must have {key!r}, got a file without it.")
    return metadata[key]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def integer(metadata: Mapping[str, Any], key: str) -> int:
    """Return a positive integer."""
    value = _require(metadata, key)
    if not _is_integer(value) or value < 1:
        raise ValueError(f"[convert] {key} must be a positive integer, got {value!r}.")
    return int(value)


def optional_integer(metadata: Mapping[str, Any], key: str, default: int) -> int:
    """Return a positive integer, or ``default`` when the key is absent."""
    return integer(metadata, key) if key in metadata else default


def number(metadata: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """Return a positive number, or ``default`` (unless None) when the key is absent."""
    value = metadata.get(key, default) if default is not None else _require(metadata, key)
    if not isinstance(value, float) and not _is_integer(value) or not 0 < value < float("inf"):
        raise ValueError(f"[convert] {key} must be a positive number, got {value!r}.")
    return float(value)


def text(metadata: Mapping[str, Any], key: str) -> str:
    """Return a string."""
    value = _require(metadata, key)
    if not isinstance(value, str):
        raise ValueError(f"[convert] {key} must be a string, got {value!r}.")
    return value


def texts(metadata: Mapping[str, Any], key: str) -> list[str]:
    """Return a list of strings."""
    value = _require(metadata, key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"[convert] {key} must be an array of strings, got {value!r:.60}.")
    return value


def flag(metadata: Mapping[str, Any], key: str) -> bool:
    """Return a boolean, false when the key is absent."""
    value = metadata.get(key, False)
    if not isinstance(value, bool):
        raise ValueError(f"[convert] {key} must be a boolean, got {value!r}.")
    return value


def token_id(metadata: Mapping[str, Any], key: str, n_tokens: int) -> int | None:
    """Return an index into the vocabulary, or None when the key is absent."""
    value = metadata.get(key)
    if value is None:
        return None
    if not _is_integer(value) or not 0 <= value < n_tokens:
        raise ValueError(
            f"[convert] {key} must be a token from 0 to {n_tokens - 1}, got {value!r}."
        )
    return int(value)
