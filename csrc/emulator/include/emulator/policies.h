#pragma once

#include <stdint.h>

// Choices that Metal leaves open, as the C ABI passes them. A kernel is right if it is right under
// all of them. All zero is the default of every policy except where noted.
enum EmuOrder { EMU_FORWARD = 0, EMU_REVERSE = 1, EMU_RANDOM = 2 };
enum EmuLayout { EMU_LAYOUT_M5 = 0, EMU_LAYOUT_GRID8 = 1, EMU_LAYOUT_RANDOM = 2 };

struct EmuPolicies {
  int32_t order;   // EmuOrder of threads in a threadgroup and of threadgroups in the grid
  int32_t seed;    // of the random order and the random layout
  int32_t layout;  // EmuLayout of cooperative tensors
  int32_t
      multiply_accumulates;  // matmul2d mode multiply, destination in memory: 0 overwrites, 1 adds
  int32_t fresh_zero;        // a fresh cooperative tensor: 0 holds NaN, 1 holds zeros
  int32_t incompatible;      // is_compatible_as_*_input and is_iterator_compatible: 0 true, 1 false
  int32_t static_k_traps;    // operand shorter than a static K: 0 masked, 1 a fault
  int32_t
      relaxed_truncates;  // relaxed_precision: 0 full float, 1 inputs cut to 11 significant bits
  int32_t row_owner;      // reduction result: 0 every copy of a row is valid, 1 one lane's only
  int32_t guard_begin;    // guard page 0 after the end of each buffer, 1 before its begin
  int32_t stack_kib;      // stack of a GPU thread, 0 for the default
  // Extents of tensor_handle arguments of more than two dimensions: 0 innermost first, 1 outermost.
  int32_t handle_outermost;
  // t[i, j], load(i, j) and store(v, i, j) of a tensor_handle: i counts along 0 the innermost
  // dimension, 1 the outermost.
  int32_t subscript_outermost;
  int32_t time_limit_ms;  // a launch that takes longer is given up, 0 for no limit
};
