#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace mto::metal {

struct Size {
  int64_t x = 1, y = 1, z = 1;
};

struct FunctionConstant {
  int index;
  std::variant<bool, int32_t, uint32_t, float> value;
};

// One instance of a kernel template of metal/<op>.metal. `function` is the instance as MSL spells
// it, "decode<half, 4, 64>": every template choice is in it, and so in the names below.
struct Kernel {
  std::string op;
  std::string function;
  std::vector<FunctionConstant> constants;
  // Text before the instance: what it names and no file of ours has.
  std::string prelude = {};
};

// The [[host_name]] of the instance, which names its library too: MLX finds libraries by name
// alone.
std::string host_name(const Kernel& kernel);
// The name of the pipeline: MLX finds pipelines of a library by name alone.
std::string pipeline_name(const Kernel& kernel);
// The self-contained text that is compiled: every header of ours inlined, one instance at its end.
std::string source(const Kernel& kernel);

}  // namespace mto::metal
