#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "emulator/runtime.h"
#include "fiber.h"

namespace emu {

class Worker;

// Why a lane waits, valid while its state is kWaiting.
struct Meeting {
  Scope scope;
  Compute compute;
  void* slot;
  const char* what;
  int line;
  bool any_lanes;
  bool is_barrier;
  uint32_t flags;    // of a barrier
  uint64_t arrival;  // order in which lanes arrived
  uintptr_t frame;   // of the call, to find the kernel line
  bool meets(const Meeting& other) const {
    return scope == other.scope && compute == other.compute && line == other.line;
  }
};

enum class State : uint8_t { kReady, kWaiting, kDone };

struct Fiber : Lane {
  State state;
  void* context;
  Meeting meeting;
};

// The lanes of a quad, a simdgroup or the threadgroup: consecutive indices.
struct Group {
  int first;
  int size;
  int alive;
  int waiting;
};

// Threads that may run, and which of them does next under the launch's order: forward always takes
// the lowest index, so that early simdgroups run ahead as far as they can; reverse the highest;
// random prefers simdgroups by a priority that it changes now and then.
class Ready {
 public:
  void reset(int n_lanes, int order, uint32_t seed);
  void add(int index) { words_[index / 64] |= uint64_t{1} << (index % 64); }
  int take();  // -1: none

 private:
  int take_random();
  int take_lane(int simdgroup, uint32_t lanes);

  static constexpr int kWords = 16;
  uint64_t words_[kWords];
  int order_;
  std::vector<uint8_t> priority_;  // simdgroups, the preferred first
  std::minstd_rand random_;
};

// Runs the threads of one threadgroup after the other on this OS thread.
class Threadgroup {
 public:
  explicit Threadgroup(Worker& worker) : worker_(worker) {}

  // False: the launch was given up. `info.position` and `info.threads` vary between calls.
  bool run(const TGInfo& info, uint32_t seed);

  void meet(const Meeting& meeting);
  // Leaves the threadgroup where it stands, from a fiber of it.
  [[noreturn]] void abandon();

  TGInfo& info() { return info_; }
  const TGInfo& info() const { return info_; }
  // The lane that findings are about: the running one, or a member of the meeting being completed.
  Fiber* current() const { return acting_ != nullptr ? acting_ : running_; }
  // Null unless a meeting is being completed.
  Fiber* acting() const { return acting_; }
  // Whose stack is in use.
  Fiber* running() const { return running_; }
  void* main_context() const { return main_context_; }
  void mark_abandoned() { abandoned_ = true; }

 private:
  void start_lanes();
  static void fiber_main();
  void finish(Fiber& fiber);
  void switch_to(int index);
  void run_next();
  bool resolve();
  void complete(Group& group, Scope scope);
  void judge(const Group& group, const Meeting& meeting, int n_active);
  Group& group_of(const Fiber& fiber, Scope scope);
  void leave(Group& group, Scope scope);

  Worker& worker_;
  TGInfo info_;
  std::vector<Fiber> fibers_;
  std::vector<Group> quads_;
  std::vector<Group> simdgroups_;
  Group all_;
  Ready ready_;
  std::vector<void*> slots_;
  uint64_t arrivals_ = 0;
  Fiber* running_ = nullptr;
  Fiber* acting_ = nullptr;
  void* main_context_ = nullptr;
  bool abandoned_ = false;
};

}  // namespace emu
