#include <algorithm>
#include <cctype>
#include <deque>
#include <mutex>

#include "common/format_call.h"

namespace mto {
namespace {

struct Registered {
  std::string name, type, metal;
  FormatRow row;
};

std::mutex registry_mutex;

// Never shrinks: primitives keep pointers to rows.
std::deque<Registered>& registry() {
  static auto* all = new std::deque<Registered>;
  return *all;
}

}  // namespace

std::vector<const FormatRow*> all_formats() {
  std::vector<const FormatRow*> rows;
  for (const auto& row : kFormats) rows.push_back(&row);
  std::lock_guard lock(registry_mutex);
  for (const auto& one : registry()) rows.push_back(&one.row);
  return rows;
}

void register_format(const std::string& name, int block, int block_bytes, uintptr_t decode_block,
                     const std::string& metal) {
  constexpr const char* kOp = "register_format";
  for (const auto* row : all_formats()) {
    if (name == row->name) fail(kOp, "name", "be new", "\"" + name + "\"");
  }
  bool identifier = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_';
  });
  if (!identifier) fail(kOp, "name", "be letters, digits and _", "\"" + name + "\"");
  if (block % 32 != 0 || block < 32 || block > kMaxLevels) {
    fail(kOp, "block_size", "be a multiple of 32 up to 256", std::to_string(block));
  }
  if (block_bytes < 1) fail(kOp, "fields", "have at least one byte", std::to_string(block_bytes));
  std::lock_guard lock(registry_mutex);
  auto& one = registry().emplace_back();
  one.name = name;
  one.metal = metal;
  one.type = "UserFormat_" + name;  // names its Metal libraries, too
  one.row = {one.name.c_str(),
             one.type.c_str(),
             0,
             block,
             block_bytes,
             false,
             Layout::kBlocks,
             Scales::kInside,
             Third::kNone,
             1,
             block,
             nullptr,
             kNoCoding,
             reinterpret_cast<void (*)(const uint8_t*, float*)>(decode_block),
             one.metal.c_str()};
}

}  // namespace mto
