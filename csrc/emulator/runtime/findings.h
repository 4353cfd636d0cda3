#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support.h"

namespace emu {

enum class Severity { kNote, kError, kFault };
enum class Access { kNone, kLoad, kStore, kAtomic, kUnknown };

// Return addresses of a kernel thread, innermost first. The reader of the findings takes the first
// one that belongs to a line of the kernel.
struct Trace {
  static constexpr int kDepth = 12;
  uintptr_t pcs[kDepth];
  int n = 0;
};

// Follows the frame pointers from `frame`, inside [low, high) only, so that code without frame
// pointers ends the walk instead of breaking it.
void walk_frames(uintptr_t frame, uintptr_t low, uintptr_t high, Trace& trace);

// A byte of memory, in words of the kernel. Empty fields do not apply.
struct Place {
  int buffer = -1;            // index of the argument
  const char* variable = "";  // of threadgroup memory
  int64_t byte = 0;
  uint64_t bytes = 0;  // size of the buffer or variable
  bool known() const { return buffer >= 0 || *variable != '\0'; }
};

// Which GPU thread; lane < 0 where it is not known.
struct Who {
  uint32_t threadgroup[3] = {0, 0, 0};
  int lane = -1;
};

struct Finding {
  Severity severity = Severity::kError;
  std::string kind;
  std::string message;
  Who who;
  Place place;
  Access access = Access::kNone;
  size_t access_bytes = 0;
  int line = 0;
  // Of the access that this one races with.
  int other_lane = -1;
  int other_line = 0;
  Trace other_trace;
  Trace trace;
  uint64_t count = 1;
};

// All findings of a launch. Workers add to it at the same time.
class Findings {
 public:
  void clear(const std::string& kernel);
  // Adds a finding, or counts it if one of that kind, message and place in the code is there
  // already.
  void add(Finding finding);
  std::string json() const;

 private:
  // What goes wrong once tends to go wrong in every thread: enough to show the pattern.
  static constexpr size_t kMost = 100;

  mutable Mutex mutex_;
  std::string kernel_;
  std::vector<Finding> findings_;
};

std::string json_string(const std::string& text);

}  // namespace emu
