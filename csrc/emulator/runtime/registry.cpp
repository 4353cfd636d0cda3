#include "registry.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "findings.h"

namespace emu {
namespace {

struct Constant {
  int index;
  void* variable;
  size_t bytes;
  const char* name;
  bool set;
};

// Functions, because static objects of another translation unit use these before main.
std::vector<NamedKernel>& all_kernels() {
  static std::vector<NamedKernel> kernels;
  return kernels;
}

std::vector<Constant>& constants() {
  static std::vector<Constant> constants;
  return constants;
}

std::vector<void (*)()>& derived() {
  static std::vector<void (*)()> functions;
  return functions;
}

TensorShape tensors[kBindings];

}  // namespace

void reg_kernel(const char* name, Kernel kernel, int most_threads) {
  std::vector<NamedKernel>& kernels = all_kernels();
  const auto place = std::find_if(kernels.begin(), kernels.end(),
                                  [name](const NamedKernel& known) { return known.name >= name; });
  kernels.insert(place, {name, kernel, most_threads});
}

void reg_fc(int index, void* p, size_t bytes, const char* name) {
  constants().push_back({index, p, bytes, name, false});
}

bool fc_defined(const void* p) {
  for (const Constant& constant : constants()) {
    if (constant.variable == p) return constant.set;
  }
  return false;
}

void reg_derived(void (*evaluate)()) { derived().push_back(evaluate); }

const std::vector<NamedKernel>& kernels() { return all_kernels(); }

const NamedKernel* find_kernel(const std::string& name) {
  for (const NamedKernel& kernel : all_kernels()) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

std::string constants_json() {
  std::string json = "[";
  for (const Constant& constant : constants()) {
    if (json.size() > 1) json += ", ";
    json += "{\"index\": " + text(constant.index) + ", \"bytes\": " + text(constant.bytes) +
            ", \"name\": " + json_string(constant.name) +
            ", \"set\": " + (constant.set ? "true" : "false") + "}";
  }
  return json + "]";
}

int set_constant(int index, const void* value, size_t bytes) {
  int n_set = 0;
  for (Constant& constant : constants()) {
    if (constant.index != index) continue;
    if (constant.bytes != bytes) return -1;
    memcpy(constant.variable, value, bytes);
    constant.set = true;
    ++n_set;
  }
  return n_set;
}

void clear_constants() {
  for (Constant& constant : constants()) {
    memset(constant.variable, 0, constant.bytes);
    constant.set = false;
  }
}

void evaluate_derived_constants() {
  for (auto* evaluate : derived()) evaluate();
}

int set_tensor(int index, const TensorShape& shape) {
  if (index < 0 || index >= kBindings) return -1;
  tensors[index] = shape;
  return 0;
}

void clear_tensors() { memset(tensors, 0, sizeof tensors); }

const TensorShape& tensor_shape(int index) { return tensors[index]; }

}  // namespace emu
