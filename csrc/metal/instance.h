#pragma once

#include <string>

#include "metal/encoder.h"

namespace mto::metal {

inline std::string argument_text(mx::Dtype dtype) { return type_name(dtype); }
inline std::string argument_text(bool value) { return value ? "true" : "false"; }
inline std::string argument_text(int value) { return std::to_string(value); }

// An instance of a kernel template as MSL spells it: instance("decode", mx::float16, 4, true) is
// "decode<half, 4, true>".
template <typename... Args>
std::string instance(const std::string& kernel, const Args&... args) {
  std::string list;
  ((list += (list.empty() ? "" : ", ") + argument_text(args)), ...);
  return kernel + "<" + list + ">";
}

}  // namespace mto::metal
