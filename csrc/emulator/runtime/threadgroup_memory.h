#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "findings.h"
#include "shadow.h"
#include "values.h"

namespace emu {

// The threadgroup memory of one OS thread, used by one threadgroup after the other. Every variable
// is right-aligned against a guard page and starts out poisoned in every threadgroup.
class ThreadgroupMemory {
 public:
  // The limit of every Apple GPU (maxThreadgroupMemoryLength).
  static constexpr size_t kLimitBytes = 32 * 1024;

  struct Variable {
    const void* key;
    const char* name;
    char* data;
    size_t bytes;
    char* mapping;  // null: owned by the caller
    size_t mapping_bytes;
    bool live;                                 // the running threadgroup has reached it
    std::unique_ptr<Shadow> shadow = nullptr;  // in the trace build
    std::unique_ptr<Mirror> mirror = nullptr;  // in the build that follows values
  };

  ThreadgroupMemory() = default;
  ThreadgroupMemory(const ThreadgroupMemory&) = delete;
  ThreadgroupMemory& operator=(const ThreadgroupMemory&) = delete;
  ~ThreadgroupMemory();

  // A new threadgroup: it has reached no variable.
  void reset();
  // Null: no memory. `fresh` tells that this threadgroup reached the variable for the first time.
  Variable* mapped(const void* key, size_t bytes, const char* name, bool& fresh);
  Variable* owned(void* data, size_t bytes, const char* name, bool& fresh);

  size_t live_bytes() const { return live_bytes_; }
  // Which variable an address is in, or near if it is in a guard page. Null for other memory.
  Variable* find(uintptr_t address);
  // Whether no page protection stands in the way of an access.
  static bool accessible(const Variable& variable, const Place& place, size_t access_bytes);
  static Place place(const Variable& variable, uintptr_t address);

 private:
  Variable* find_key(const void* key, size_t bytes);
  Variable* start(Variable& variable, bool& fresh);

  std::vector<Variable> variables_;
  size_t live_bytes_ = 0;
};

}  // namespace emu
