"""Source lines of addresses in a compiled library: a reader of DWARF 4 line tables.

Findings carry program counters; no tool that could look them up comes with the compiler.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

# DWARF 4, section 6.2.5: opcodes of line number programs.
_COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE, _CONST_ADD_PC, _FIXED_ADVANCE_PC = 1, 2, 3, 4, 8, 9
_END_SEQUENCE, _SET_ADDRESS = 1, 2


@dataclass(frozen=True, slots=True)
class Row:
    """From this address on, code belongs to the line; line 0 ends a sequence."""

    address: int
    file: str
    line: int


def place_of(library: Path, addresses: Sequence[int], own: Sequence[str] = ()) -> str | None:
    """File and line of the first address in a source that is not under the folders `own`."""
    table = line_table(library)
    starts = [row.address for row in table]
    for address in addresses:
        found = bisect_right(starts, address) - 1
        row = table[found] if found >= 0 else None
        is_kernel = row is not None and row.line and not row.file.startswith((*own, "<"))
        if row is not None and is_kernel:
            return f"{row.file}:{row.line}"
    return None


@lru_cache(maxsize=16)
def line_table(library: Path) -> tuple[Row, ...]:
    """All rows of the library's line tables, by address."""
    data = _section(library.read_bytes(), b".debug_line")
    rows: list[Row] = []
    position = 0
    while position + 4 <= len(data):
        length = int.from_bytes(data[position : position + 4], "little")
        rows += _Unit(data[position : position + 4 + length]).rows()
        position += 4 + length
    # Where sequences touch, the end of one must not hide the begin of the next.
    return tuple(sorted(rows, key=lambda row: (row.address, row.line != 0)))


def _section(elf: bytes, name: bytes) -> bytes:
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + k * size) for k in range(count)]
    names_at = headers[names_index][4]
    for header in headers:
        start = names_at + header[0]
        if elf[start : elf.index(b"\0", start)] == name:
            return elf[header[4] : header[4] + header[5]]
    return b""


class _Reader:
    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    def take(self, n: int, signed: bool = False) -> int:
        self.position += n
        piece = self.data[self.position - n : self.position]
        return int.from_bytes(piece, "little", signed=signed)

    def leb(self, signed: bool = False) -> int:
        value, shift = 0, 0
        while True:
            byte = self.take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return value - (1 << shift) if signed and byte & 0x40 else value

    def text(self) -> str:
        end = self.data.index(b"\0", self.position)
        piece = self.data[self.position : end]
        self.position = end + 1
        return piece.decode(errors="replace")


class _Unit:
    """The line number program of one compilation unit."""

    def __init__(self, data: bytes) -> None:
        self._reader = reader = _Reader(data, 4)
        self._version = reader.take(2)
        if self._version != 4:
            return
        program = reader.take(4) + reader.position
        self._min_length = reader.take(1)
        reader.take(2)
        self._line_base = reader.take(1, signed=True)
        self._line_range = reader.take(1)
        self._opcode_base = reader.take(1)
        self._n_operands = [0, *(reader.take(1) for _ in range(self._opcode_base - 1))]
        folders = ["", *self._texts()]
        self._files = ["", *self._file_names(folders)]
        reader.position = program

    def _texts(self) -> Iterator[str]:
        while text := self._reader.text():
            yield text

    def _file_names(self, folders: list[str]) -> Iterator[str]:
        while name := self._reader.text():
            folder, _, _ = (self._reader.leb() for _ in range(3))
            absolute = name.startswith(("/", "<")) or not folders[folder]
            yield name if absolute else f"{folders[folder]}/{name}"

    def rows(self) -> Iterator[Row]:
        if self._version != 4:
            return
        while self._reader.position < len(self._reader.data):
            yield from self._sequence()

    def _sequence(self) -> Iterator[Row]:
        reader, address, file, line = self._reader, 0, 1, 1
        while reader.position < len(reader.data):
            opcode = reader.take(1)
            if opcode >= self._opcode_base:
                step, line_step = divmod(opcode - self._opcode_base, self._line_range)
                address += step * self._min_length
                line += self._line_base + line_step
                yield Row(address, self._files[file], line)
            elif opcode == 0:
                end = reader.leb() + reader.position
                extended = reader.take(1)
                if extended == _SET_ADDRESS:
                    address = reader.take(8)
                reader.position = end
                if extended == _END_SEQUENCE:
                    yield Row(address, "", 0)
                    return
            elif opcode == _COPY:
                yield Row(address, self._files[file], line)
            elif opcode == _ADVANCE_PC:
                address += reader.leb() * self._min_length
            elif opcode == _ADVANCE_LINE:
                line += reader.leb(signed=True)
            elif opcode == _SET_FILE:
                file = reader.leb()
            elif opcode == _CONST_ADD_PC:
                address += (255 - self._opcode_base) // self._line_range * self._min_length
            elif opcode == _FIXED_ADVANCE_PC:
                address += reader.take(2)
            else:
                for _ in range(self._n_operands[opcode]):
                    reader.leb()
