#pragma once

#include <string>
#include <vector>

#include "emulator/runtime.h"

namespace emu {

struct NamedKernel {
  std::string name;
  Kernel function;
  int most_threads;
};

// By name; filled by static objects of the kernel translation unit when the library is loaded.
const std::vector<NamedKernel>& kernels();
// Null: there is no such kernel.
const NamedKernel* find_kernel(const std::string& name);

// Function constants; see abi.h.
std::string constants_json();
int set_constant(int index, const void* value, size_t bytes);
void clear_constants();
void evaluate_derived_constants();

// Tensors by buffer index; see abi.h.
int set_tensor(int index, const TensorShape& shape);
void clear_tensors();

}  // namespace emu
