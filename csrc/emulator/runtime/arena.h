#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "emulator/runtime.h"
#include "findings.h"

namespace emu {

// The device memory of a launch: a copy of every bound buffer, alone in inaccessible address space.
// One end of the buffer touches it; buffers keep an alignment of 16 bytes, so up to 15 bytes
// between the end of the data and the guard stay writable and are checked after the launch.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // Indices from n on, and null pointers, are unbound. False: no memory.
  bool map(int n, void* const* host, const size_t* bytes, bool guard_begin);
  const Binding* bindings() const { return bindings_; }
  // Writes back what changed, and only that: an input may live in read-only memory.
  void copy_back() const;
  // Reports writes to the bytes around a buffer that no page protection covers.
  void check_surroundings(Findings& findings) const;

  // The buffer whose own address space the address is in; not known() for any other address.
  Place locate(uintptr_t address) const;
  size_t bytes(int index) const { return buffers_[index].bytes; }
  // Whether no page protection stands in the way of an access.
  bool accessible(const Place& place, size_t access_bytes) const;
  bool bound(int index) const { return buffers_[index].host != nullptr; }

 private:
  struct Buffer {
    void* host;
    char* data;  // null: unbound
    size_t bytes;
    char* pages;
    size_t page_bytes;
  };
  bool map_buffer(Buffer& buffer, char* slot, bool guard_begin);

  char* base_ = nullptr;
  size_t total_ = 0;
  std::vector<char*> slots_;  // where the address space of each index begins, and its end
  Buffer buffers_[kBindings] = {};
  Binding bindings_[kBindings] = {};
};

}  // namespace emu
