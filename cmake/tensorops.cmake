# Kernels and ops. A kernel file is compiled once per instruction set, in a namespace of that name, and
# sees neither MLX nor Python, so that it can be tested alone and cross-built.

find_package(Threads REQUIRED)

set(MTO_OP_SOURCES "")
add_library(mto_kernels STATIC csrc/cpu/isa.cpp csrc/cpu/thread_pool.cpp)
target_include_directories(mto_kernels PUBLIC csrc)
target_link_libraries(mto_kernels PUBLIC Threads::Threads)
# A fused multiply-add is written where it is meant: contraction would change bits between compilers.
target_compile_options(mto_kernels PRIVATE -O3 -Wall -Wextra -ffp-contract=off)

set(MTO_ISAS scalar)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND MTO_ISAS avx2 avx512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "arm64|aarch64")
  list(APPEND MTO_ISAS neon)
endif()
set(MTO_ISA_FLAGS_scalar "")
set(MTO_ISA_FLAGS_neon "")
set(MTO_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(MTO_ISA_FLAGS_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c)

# tensorops_add_op(<op>): all of csrc/ops/<op>; *_kernels.cpp once for every instruction set.
macro(tensorops_add_op op)
  tensorops_add_folder(${op} csrc/ops/${op})
endmacro()

function(tensorops_add_folder op folder)
  file(GLOB sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  set(kernels ${sources})
  list(FILTER kernels INCLUDE REGEX "_kernels\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "_kernels\\.cpp$")
  set(MTO_OP_SOURCES ${MTO_OP_SOURCES} ${sources} PARENT_SCOPE)
  if(NOT kernels)
    return()
  endif()
  foreach(isa IN LISTS MTO_ISAS)
    add_library(${op}_${isa} OBJECT ${kernels})
    target_include_directories(${op}_${isa} PRIVATE csrc)
    target_compile_definitions(${op}_${isa} PRIVATE MTO_ISA=${isa} MTO_ISA_${isa}=1)
    target_compile_options(${op}_${isa} PRIVATE -O3 -Wall -Wextra -ffp-contract=off
      ${MTO_ISA_FLAGS_${isa}})
    target_sources(mto_kernels PRIVATE $<TARGET_OBJECTS:${op}_${isa}>)
  endforeach()
endfunction()

# tensorops_embed_metal(): MTO_METAL_SOURCES, the Metal backend with its kernels as text.
function(tensorops_embed_metal)
  set(root "${CMAKE_CURRENT_SOURCE_DIR}")
  file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE "${root}" metal/*.metal metal/*.h)
  file(GLOB shared CONFIGURE_DEPENDS RELATIVE "${root}" csrc/formats/*.h csrc/ops/*/*_metal_params.h
    csrc/ops/*/scaled_dot_product_attention_tiles.h)
  list(FILTER shared EXCLUDE REGEX "/(.*_simd|.*_encode|formats|packed_matrix|format_.*)\\.h$")
  list(APPEND files ${shared})
  list(SORT files)
  set(output "${CMAKE_CURRENT_BINARY_DIR}/embedded_metal.cpp")
  string(REPLACE ";" "$<SEMICOLON>" joined "${files}")
  add_custom_command(OUTPUT "${output}"
    COMMAND "${CMAKE_COMMAND}" "-DROOT=${root}" "-DFILES=${joined}" "-DOUTPUT=${output}"
      -P "${root}/cmake/embed.cmake"
    DEPENDS ${files} cmake/embed.cmake VERBATIM)
  if(APPLE)
    set(encoder csrc/metal/mlx_encoder.cpp)
  else()
    set(encoder csrc/metal/emulated_encoder.cpp)
  endif()
  set(MTO_METAL_SOURCES "${output}" "${encoder}" csrc/metal/format_binding.cpp
    csrc/metal/format_trial.cpp csrc/metal/kernel.cpp csrc/metal/recorder.cpp
    csrc/metal/strided.cpp csrc/metal/trial.cpp csrc/metal/verdict_file.cpp
    csrc/metal/verification.cpp
    PARENT_SCOPE)
endfunction()
