# Builds for arm64 Linux with zig, and runs what it built under qemu's user-mode emulator.
# ARM64_PYTHON: an interpreter that has ziglang.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ARM64_PYTHON)
# The oldest glibc that MLX's own arm64 wheels run on.
set(CMAKE_CXX_COMPILER "${ARM64_PYTHON}" -m ziglang c++ -target aarch64-linux-gnu.2.35)

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
