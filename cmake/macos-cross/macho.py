"""Read what a linked macOS arm64 binary is and where each of its imports comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import lief

NANOBIND_KEY = re.compile(rb"nanobind_system_[A-Za-z0-9_]+_v[0-9]+")


# The symbol table's own numbers (<mach-o/nlist.h>).
STAB, TYPE, EXTERNAL, UNDEFINED = 0xE0, 0x0E, 0x01, 0x00
LOADS = {"LOAD_DYLIB", "LOAD_WEAK_DYLIB", "REEXPORT_DYLIB", "LOAD_UPWARD_DYLIB", "LAZY_LOAD_DYLIB"}

lief.logging.disable()


@dataclass(frozen=True)
class MachO:
    """The arm64 part of one Mach-O file."""

    path: Path
    file_type: str
    flags: frozenset[str]
    minimum_macos: str
    run_paths: tuple[str, ...]
    imports: dict[str, frozenset[str]]
    unbound: frozenset[str]
    exports: frozenset[str]
    nanobind_keys: frozenset[str]


def read(path: Path) -> MachO:
    """Parse ``path``; raises ValueError if it has no arm64 part."""
    parsed = lief.MachO.parse(str(path))
    # take() hands the slice over; one that is only borrowed dies with the container.
    binary = parsed.take(lief.MachO.Header.CPU_TYPE.ARM64) if parsed else None
    if binary is None:
        raise ValueError(f"{path} is not a Mach-O file for arm64")
    imports, unbound = _imports(binary)
    version = binary.build_version
    return MachO(
        path=path,
        file_type=binary.header.file_type.name,
        flags=frozenset(str(flag.name) for flag in binary.header.flags_list),
        minimum_macos=".".join(str(part) for part in version.minos[:2]) if version else "",
        run_paths=tuple(str(command.path) for command in binary.rpaths),
        imports={library: frozenset(imports[library]) for library in sorted(imports)},
        unbound=frozenset(unbound),
        exports=frozenset(str(symbol.name) for symbol in binary.exported_symbols),
        nanobind_keys=frozenset(key.decode() for key in NANOBIND_KEY.findall(path.read_bytes())),
    )


def _imports(binary: lief.MachO.Binary) -> tuple[dict[str, set[str]], set[str]]:
    """Return the undefined names by the library they were linked to, and those without one."""
    libraries = [str(each.name) for each in binary.libraries if each.command.name in LOADS]
    imports: dict[str, set[str]] = {}
    unbound: set[str] = set()
    for symbol in binary.symbols:
        kind = symbol.raw_type
        if kind & STAB or kind & TYPE != UNDEFINED or not kind & EXTERNAL:
            continue
        ordinal = symbol.description >> 8 & 0xFF
        if 1 <= ordinal <= len(libraries):
            imports.setdefault(libraries[ordinal - 1], set()).add(str(symbol.name))
        else:
            unbound.add(str(symbol.name))
    return imports, unbound
