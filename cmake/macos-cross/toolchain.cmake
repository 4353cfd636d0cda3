# Builds for macOS on Apple silicon with the compiler that build.py wrote launchers for, in MACOS_CROSS_TOOLS.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_OSX_ARCHITECTURES "")
set(CMAKE_OSX_SYSROOT "")

list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MACOS_CROSS_TOOLS)
set(CMAKE_CXX_COMPILER "${MACOS_CROSS_TOOLS}/c++")
set(CMAKE_CXX_COMPILER_AR "${MACOS_CROSS_TOOLS}/ar")
set(CMAKE_AR "${MACOS_CROSS_TOOLS}/ar")
set(CMAKE_RANLIB "${MACOS_CROSS_TOOLS}/ranlib")
# RPATHs are right from the link on, so there is nothing for it to do; CMake only wants it to exist.
set(CMAKE_INSTALL_NAME_TOOL "${MACOS_CROSS_TOOLS}/install_name_tool")

# A trial program would need an SDK's start-up files.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
