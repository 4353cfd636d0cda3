#pragma once

#include <cstdint>
#include <vector>

#include "emulator/runtime.h"
#include "findings.h"
#include "shadow.h"
#include "threadgroup_memory.h"

namespace emu {

struct Fiber;
class Worker;

// In the trace build the compiler calls the runtime before each access to memory.
#ifdef EMU_TRACE
constexpr bool kTrace = true;
#else
constexpr bool kTrace = false;
#endif

// Follows the accesses of one threadgroup after the other: bounds to the byte, memory read before
// it was written, races, bytes moved. Used in the trace build only, which runs one threadgroup at a
// time so that findings repeat.
class Tracer {
 public:
  explicit Tracer(Worker& worker) : worker_(worker) {}

  // `group` counts from 1: zero is the empty cell of a shadow.
  void start(uint32_t group, uint32_t n_simdgroups);
  // `lane` is one of those that met.
  void barrier(Scope scope, uint32_t lane, uint32_t flags);
  // `frame` is that of a function called from where the access is. What the shim does belongs to
  // where the kernel called it.
  void access(uintptr_t address, size_t bytes, Access access, uintptr_t frame, bool by_shim);

  // Decides about a race of stores, now that the second one has happened.
  void settle();

  uint64_t read_bytes[kBindings] = {};
  uint64_t written_bytes[kBindings] = {};

 private:
  // Barriers order the kinds of memory that their flags name, and only those.
  enum Kind { kDevice, kShared, kKinds };
  struct Epochs {
    uint16_t of[kKinds];
  };
  struct Range {
    uintptr_t address;
    size_t bytes;
  };
  void access_device(const Place& place, Touch touch, const Range& range, uintptr_t frame);
  void access_shared(ThreadgroupMemory::Variable& variable, Touch touch, const Range& range,
                     uintptr_t frame);
  void check_stack(const Touch& touch, const Range& range, uintptr_t frame);
  Touch touch_of(Access access, uintptr_t frame, bool by_shim);
  uint32_t operation_of(const Fiber& member);
  uint32_t call_of(const Fiber& lane, uintptr_t frame, int line);
  void order(Touch& touch, Kind kind) const;
  void report(const char* kind, const std::string& message, const Place& place, const Touch& touch,
              size_t bytes, uintptr_t frame);
  void report_race(const Race& race, const Place& place, const Touch& touch, const Range& range,
                   uintptr_t frame);

  Worker& worker_;
  uint32_t group_ = 0;
  Epochs threadgroup_ = {};
  std::vector<Epochs> simdgroups_;
  std::vector<Epochs> quads_;
  // Calls of the shim that touched memory, by the number in a Site.
  struct Call {
    int line;
    Trace trace;
  };
  std::vector<Call> calls_;
  uint64_t last_arrival_ = 0;
  uint32_t last_operation_ = 0;
  uint32_t last_call_ = 0;
  // A store about to happen that races with an earlier one, and what it overwrites.
  Finding pending_;
  uintptr_t pending_address_ = 0;
  std::vector<char> pending_before_;
};

}  // namespace emu
