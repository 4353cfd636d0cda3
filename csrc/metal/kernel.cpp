#include "metal/kernel.h"

#include <set>
#include <sstream>
#include <stdexcept>

#include "metal/embedded.h"

namespace mto::metal {
namespace {

const Embedded* find(std::string_view path) {
  for (const auto& file : embedded()) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

// Quoted includes are looked up in metal/ and then in csrc/.
const Embedded& resolve(const std::string& name) {
  for (const char* folder : {"metal/", "csrc/"}) {
    if (auto* file = find(folder + name)) return *file;
  }
  throw std::runtime_error("[metal] no such source: " + name);
}

// Appends the file with its quoted includes in place, each file once.
void inline_file(const Embedded& file, std::set<std::string_view>& seen, std::string& out) {
  if (!seen.insert(file.path).second) return;
  constexpr std::string_view kInclude = "#include \"";
  std::istringstream text{std::string(file.text)};
  std::string line;
  auto mark = [&](int number) {
    out += "#line " + std::to_string(number) + " \"" + std::string(file.path) + "\"\n";
  };
  mark(1);
  for (int number = 1; std::getline(text, line); ++number) {
    if (line == "#pragma once") {
      out += "\n";
    } else if (line.starts_with(kInclude)) {
      auto name = line.substr(kInclude.size(), line.rfind('"') - kInclude.size());
      inline_file(resolve(name), seen, out);
      mark(number + 1);
    } else {
      out += line + "\n";
    }
  }
}

std::string text_of(const std::variant<bool, int32_t, uint32_t, float>& value) {
  std::ostringstream out;
  std::visit([&](auto v) { out << v; }, value);
  return out.str();
}

}  // namespace

std::string host_name(const Kernel& kernel) {
  std::string name = "mlx_tensorops_";
  for (char c : kernel.function) {
    bool kept = isalnum(static_cast<unsigned char>(c)) || c == '_';
    if (kept) name += c;
    if (!kept && name.back() != '_') name += '_';
  }
  if (name.back() == '_') name.pop_back();
  return name;
}

std::string pipeline_name(const Kernel& kernel) {
  auto name = host_name(kernel);
  for (const auto& constant : kernel.constants) {
    name += "_c" + std::to_string(constant.index) + "_" + text_of(constant.value);
  }
  return name;
}

std::string source(const Kernel& kernel) {
  std::set<std::string_view> seen;
  std::string out;
  inline_file(resolve(kernel.op + ".metal"), seen, out);
  out += kernel.prelude;
  const auto& f = kernel.function;
  out += "template [[host_name(\"" + host_name(kernel) + "\")]] [[kernel]] decltype(" + f + ") " +
         f + ";\n";
  return out;
}

}  // namespace mto::metal
