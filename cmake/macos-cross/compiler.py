"""Act as a macOS C++ compiler for CMake: translate its command line to `zig c++` and run that.

Usage: compiler.py ZIG MACOS_VERSION LINK_STUBS PYTHON_STUB ARGUMENTS...
"""

from __future__ import annotations

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
COMPILE_FLAGS = [
    # System headers that zig carries and the stubs define some of the same macros.
    "-Wno-macro-redefined",
    # zig's libc++ is newer than Apple's: no call may need what the target's libc++.dylib lacks.
    "-fno-sized-deallocation",
    "-D_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS=1",
    "-isystem",
    os.path.join(HERE, "stubs", "include"),
]
NO_LINK = {"-c", "-E", "-S", "--version", "-v"}


def translate(arguments: list[str], link_stubs: str, python_stub: str) -> list[str]:
    """Return the arguments for `zig c++` that do what ``arguments`` ask of Apple's clang."""
    if not NO_LINK.isdisjoint(arguments):
        return COMPILE_FLAGS + arguments
    # zig's linker reads no response file of -U names; the Python stub stands for that list.
    kept = [argument for argument in arguments if not argument.startswith("-Wl,@")]
    # It makes no bundles either; a dylib resolves its symbols by the same rules.
    kept = ["-shared" if argument == "-bundle" else argument for argument in kept]
    # Without -nostdlib++ zig would link its own libc++ and hide what the target's lacks.
    stubs = ["-nostdlib++", f"-F{link_stubs}"]
    stubs += [os.path.join(link_stubs, name) for name in ("libc++.tbd", "libobjc.tbd")]
    return COMPILE_FLAGS + kept + [*stubs, python_stub]


def main() -> None:
    """Replace this process by the compiler."""
    zig, macos, link_stubs, python_stub, *arguments = sys.argv[1:]
    translated = translate(arguments, link_stubs, python_stub)
    os.execv(zig, [zig, "c++", "-target", f"aarch64-macos.{macos}", *translated])


if __name__ == "__main__":
    main()
