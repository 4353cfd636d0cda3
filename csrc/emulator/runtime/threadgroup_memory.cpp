#include "threadgroup_memory.h"

#include <sys/mman.h>

#include <cstring>

#include "pages.h"
#include "trace.h"

namespace emu {
namespace {

// Metal gives each allocation a multiple of 16 bytes (setThreadgroupMemoryLength requires it).
constexpr size_t kUnit = 16;

}  // namespace

ThreadgroupMemory::~ThreadgroupMemory() {
  for (const Variable& variable : variables_) {
    if (variable.mapping != nullptr) munmap(variable.mapping, variable.mapping_bytes);
  }
}

void ThreadgroupMemory::reset() {
  for (Variable& variable : variables_) variable.live = false;
  live_bytes_ = 0;
}

ThreadgroupMemory::Variable* ThreadgroupMemory::find_key(const void* key, size_t bytes) {
  for (Variable& variable : variables_) {
    if (variable.key == key && variable.bytes == bytes) return &variable;
  }
  return nullptr;
}

ThreadgroupMemory::Variable* ThreadgroupMemory::mapped(const void* key, size_t bytes,
                                                       const char* name, bool& fresh) {
  Variable* variable = find_key(key, bytes);
  if (variable == nullptr) {
    const size_t data_bytes = round_up(bytes, page_bytes());
    const size_t mapping_bytes = data_bytes + 2 * kGuardBytes;
    char* mapping = reserve(mapping_bytes);
    if (mapping == nullptr) return nullptr;
    char* pages = mapping + kGuardBytes;
    if (!allow_access(pages, data_bytes)) {
      munmap(mapping, mapping_bytes);
      return nullptr;
    }
    memset(pages, kPoison, data_bytes);
    variables_.push_back({key, name, pages + data_bytes - round_up(bytes, kUnit), bytes, mapping,
                          mapping_bytes, false});
    variable = &variables_.back();
  }
  return start(*variable, fresh);
}

ThreadgroupMemory::Variable* ThreadgroupMemory::owned(void* data, size_t bytes, const char* name,
                                                      bool& fresh) {
  Variable* variable = find_key(data, bytes);
  if (variable == nullptr) {
    variables_.push_back({data, name, static_cast<char*>(data), bytes, nullptr, 0, false, nullptr});
    variable = &variables_.back();
  }
  return start(*variable, fresh);
}

ThreadgroupMemory::Variable* ThreadgroupMemory::start(Variable& variable, bool& fresh) {
  fresh = !variable.live;
  if (!fresh) return &variable;
  variable.live = true;
  live_bytes_ += round_up(variable.bytes, kUnit);
  memset(variable.data, kPoison, variable.bytes);
  if (kTrace && variable.shadow == nullptr) {
    variable.shadow = std::make_unique<Shadow>();
    if (!variable.shadow->map(variable.bytes)) return nullptr;
  }
  if (kValues && variable.mirror == nullptr) {
    variable.mirror = std::make_unique<Mirror>();
    if (!variable.mirror->map(variable.data, variable.bytes)) return nullptr;
  }
  forget(variable.data, variable.bytes, variable.name);
  return &variable;
}

ThreadgroupMemory::Variable* ThreadgroupMemory::find(uintptr_t address) {
  const auto* p = reinterpret_cast<const char*>(address);
  for (Variable& variable : variables_) {
    const bool mapped = variable.mapping != nullptr;
    const char* begin = mapped ? variable.mapping : variable.data;
    const size_t bytes = mapped ? variable.mapping_bytes : variable.bytes;
    if (p >= begin && p < begin + bytes) return &variable;
  }
  return nullptr;
}

Place ThreadgroupMemory::place(const Variable& variable, uintptr_t address) {
  return {-1, variable.name, reinterpret_cast<const char*>(address) - variable.data,
          variable.bytes};
}

bool ThreadgroupMemory::accessible(const Variable& variable, const Place& place,
                                   size_t access_bytes) {
  if (variable.mapping == nullptr) return false;
  const char* begin = variable.data + place.byte;
  const char* pages = variable.mapping + kGuardBytes;
  const char* pages_end = variable.mapping + variable.mapping_bytes - kGuardBytes;
  return begin >= pages && begin + access_bytes <= pages_end;
}

}  // namespace emu
