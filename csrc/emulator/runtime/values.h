#pragma once

#include <cstdint>
#include <vector>

#include "emulator/runtime.h"
#include "findings.h"

namespace emu {

class Worker;

// In the build that follows values the compiler keeps a shadow of every value: which of its bits
// depend on something that was never set, and on what. The runtime lends it memory for the shadows
// of memory.
#ifdef EMU_VALUES
constexpr bool kValues = true;
#else
constexpr bool kValues = false;
#endif

// For each byte of some memory the bits that are not set, for each four the origin of that.
struct Metadata {
  char* unset;
  uint32_t* origins;
};

// The metadata of one piece of memory, taken from the system as they are used.
class Mirror {
 public:
  Mirror() = default;
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;
  ~Mirror();

  bool map(const void* memory, size_t bytes);
  bool contains(uintptr_t address, size_t bytes) const {
    return address - begin_ < bytes_ && bytes_ - (address - begin_) >= bytes;
  }
  Metadata at(uintptr_t address) const;

 private:
  uintptr_t begin_ = 0;  // a multiple of four
  size_t bytes_ = 0;
  char* unset_ = nullptr;
};

// Finds uses of what was never set: where it decides a branch or an address, and where it is stored
// to a buffer. Used in the build that follows values only, which runs one threadgroup at a time.
class Values {
 public:
  explicit Values(Worker& worker) : worker_(worker) {}

  // False: no memory.
  bool start();

  // Where the compiler finds, and puts, what is known about memory. `frame` is that of a function
  // called from where the access is.
  Metadata of_load(uintptr_t address, size_t bytes);
  Metadata of_store(uintptr_t address, size_t bytes, uintptr_t frame);
  void copy(uintptr_t to, uintptr_t from, size_t bytes, uintptr_t frame);
  void set(uintptr_t address, size_t bytes);
  // `place` is the address of the code that made the memory, zero if it is not known.
  void forget(uintptr_t address, size_t bytes, const char* name, uintptr_t place);

  void branch(uint32_t origin, uintptr_t frame);
  // Decides about a store to a buffer, now that it has happened.
  void settle();

  // Through which functions tell each other about parameters and results; see hooks of the
  // compiler.
  void* call_state() { return call_state_; }
  // The parameters of the next call are set, which comes from code that the compiler did not see.
  void clear_parameters();

 private:
  struct Origin {
    const char* name;
    uintptr_t place;
  };
  const Mirror* find(uintptr_t address, size_t bytes);
  uint32_t origin_of(const char* name, uintptr_t place);
  void describe(Finding& finding, uint32_t origin) const;

  Worker& worker_;
  Mirror stacks_;
  Mirror buffers_[kBindings];
  std::vector<Origin> origins_;  // by number, which counts from 1
  // A store to a buffer that is about to happen.
  Finding pending_;
  uintptr_t pending_address_ = 0;
  // LLVM's struct of 4 times 800 bytes, 8, 800 and 4 (MemorySanitizer.cpp, createKernelApi).
  alignas(16) char call_state_[4096] = {};
};

}  // namespace emu
