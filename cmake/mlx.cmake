# MLX from its wheel, imported by hand: the wheel's own CMake package asks for cuDNN on Linux and for
# one particular Xcode on macOS. Defines mlx_wheel, MTO_MLX_VERSION and MTO_NANOBIND_ABI.

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
  OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED NO_CMAKE_FIND_ROOT_PATH)

# MLX_ROOT holds include/ and lib/; MLX_CORE_DIR holds core.*.so (they differ only in cross builds).
if(NOT MLX_ROOT)
  execute_process(COMMAND "${Python_EXECUTABLE}" -c "import mlx; print(list(mlx.__path__)[0])"
    OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE MLX_ROOT COMMAND_ERROR_IS_FATAL ANY)
endif()
if(NOT MLX_CORE_DIR)
  set(MLX_CORE_DIR "${MLX_ROOT}")
endif()
find_library(MTO_MLX_LIBRARY mlx PATHS "${MLX_ROOT}/lib" NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
if(NOT MTO_MLX_LIBRARY)
  message(FATAL_ERROR "No libmlx below ${MLX_ROOT}: the build needs an MLX with a backend, "
    "such as 'mlx[cpu]==0.32.4' on Linux.")
endif()

add_library(mlx_wheel SHARED IMPORTED)
set_target_properties(mlx_wheel PROPERTIES IMPORTED_LOCATION "${MTO_MLX_LIBRARY}")
target_include_directories(mlx_wheel SYSTEM INTERFACE "${MLX_ROOT}/include")
if(APPLE AND EXISTS "${MLX_ROOT}/include/metal_cpp")
  target_include_directories(mlx_wheel SYSTEM INTERFACE "${MLX_ROOT}/include/metal_cpp")
  target_compile_definitions(mlx_wheel INTERFACE _METAL_)
  target_link_libraries(mlx_wheel INTERFACE "-framework Metal" "-framework Foundation")
endif()

file(STRINGS "${MLX_ROOT}/include/mlx/version.h" _lines REGEX "define MLX_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX MATCHALL "[0-9]+" _numbers "${_lines}")
list(JOIN _numbers "." MTO_MLX_VERSION)
if(NOT MTO_MLX_VERSION STREQUAL "0.32.4")
  message(FATAL_ERROR "MLX must be 0.32.4, got ${MTO_MLX_VERSION} in ${MLX_ROOT}: its C++ ABI "
    "changes between patch releases.")
endif()

# Two extensions exchange types only when their nanobind internals carry the same key. A mismatch
# would build and import, and then refuse every mx.array with a TypeError.
file(STRINGS "${nanobind_ROOT}/../src/nb_internals.h" _line REGEX "define NB_INTERNALS_VERSION")
string(REGEX MATCH "[0-9]+$" _internals "${_line}")
file(GLOB _cores "${MLX_CORE_DIR}/core.*.so")
if(NOT _cores)
  message(FATAL_ERROR "No core.*.so below ${MLX_CORE_DIR}: is MLX installed for this Python?")
endif()
foreach(_core IN LISTS _cores)
  file(STRINGS "${_core}" MTO_NANOBIND_ABI REGEX "^nanobind_system_.*_v[0-9]+$")
  if(NOT MTO_NANOBIND_ABI MATCHES "_v${_internals}$")
    message(FATAL_ERROR "nanobind internals must be those of mlx.core (${MTO_NANOBIND_ABI}), "
      "got v${_internals} in ${nanobind_ROOT}.")
  endif()
endforeach()
message(STATUS "MLX ${MTO_MLX_VERSION} at ${MLX_ROOT}, nanobind ABI ${MTO_NANOBIND_ABI}")
