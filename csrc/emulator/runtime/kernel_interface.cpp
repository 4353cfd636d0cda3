#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "worker.h"

// The part of runtime.h that kernel code calls while it runs.

namespace emu {
namespace {

// Meets others without exchanging anything; its address identifies a barrier.
void meet_only(void**, int, int) {}

uintptr_t frame_address() { return reinterpret_cast<uintptr_t>(__builtin_frame_address(0)); }

void record(Severity severity, const char* kind, const char* message, uintptr_t frame) {
  const InRuntime in_runtime;
  Finding finding;
  finding.severity = severity;
  finding.kind = kind;
  finding.message = message;
  if (worker == nullptr) return findings().add(std::move(finding));
  worker->record(std::move(finding), frame);
}

// Reports the limit once a threadgroup exceeds it; Metal refuses such a pipeline or dispatch.
void check_limit(const char* name, uintptr_t frame) {
  const size_t bytes = worker->memory.live_bytes();
  if (bytes <= ThreadgroupMemory::kLimitBytes) return;
  Finding finding;
  finding.kind = "threadgroup_memory_limit";
  finding.message = text(bytes) + " bytes of threadgroup memory with variable " + name +
                    ", the limit is " + text(ThreadgroupMemory::kLimitBytes);
  worker->record(std::move(finding), frame);
}

[[noreturn]] void out_of_memory() { fault("no_memory", "no memory for a threadgroup variable"); }

}  // namespace

Lane* cur_lane() { return worker->threadgroup.current(); }

TGInfo* cur_tg() { return &worker->threadgroup.info(); }

void rendezvous(Scope scope, Compute compute, void* slot, const char* what, int line,
                Expects expects) {
  const InRuntime in_runtime;
  Meeting meeting = {};
  meeting.scope = scope;
  meeting.compute = compute;
  meeting.slot = slot;
  meeting.what = what;
  meeting.line = line;
  meeting.any_lanes = expects == kAnyLanes;
  meeting.frame = frame_address();
  in_runtime.current()->threadgroup.meet(meeting);
}

void barrier(Scope scope, uint32_t flags, const char* what, int line) {
  const InRuntime in_runtime;
  static char present;
  Meeting meeting = {};
  meeting.scope = scope;
  meeting.compute = meet_only;
  meeting.slot = &present;
  meeting.what = what;
  meeting.line = line;
  meeting.is_barrier = true;
  meeting.flags = flags;
  meeting.frame = frame_address();
  in_runtime.current()->threadgroup.meet(meeting);
}

void* tg_variable(const void* key, size_t bytes, const char* name) {
  const InRuntime in_runtime;
  bool fresh;
  const auto* variable = worker->memory.mapped(key, bytes, name, fresh);
  if (variable == nullptr) out_of_memory();
  void* data = variable->data;
  if (fresh) check_limit(name, frame_address());
  return data;
}

void tg_register(void* p, size_t bytes, const char* name) {
  const InRuntime in_runtime;
  bool fresh;
  if (worker->memory.owned(p, bytes, name, fresh) == nullptr) out_of_memory();
  if (fresh) check_limit(name, frame_address());
}

void* tg_dynamic(int index) {
  static const char keys[kBindings] = {};
  static const char* const names[kBindings] = {
      "[[threadgroup(0)]]", "[[threadgroup(1)]]", "[[threadgroup(2)]]", "[[threadgroup(3)]]",
      "[[threadgroup(4)]]", "[[threadgroup(5)]]", "[[threadgroup(6)]]", "[[threadgroup(7)]]"};
  const std::vector<size_t>& sizes = worker->launch.threadgroup_bytes;
  const bool given = index >= 0 && index < static_cast<int>(sizes.size());
  const char* name = index >= 0 && index < 8 ? names[index] : "[[threadgroup]]";
  return tg_variable(&keys[index], given ? sizes[index] : 0, name);
}

void report(const char* kind, const char* message) {
  record(Severity::kError, kind, message, frame_address());
}

void note(const char* kind, const char* message) {
  record(Severity::kNote, kind, message, frame_address());
}

void fault(const char* kind, const char* message) {
  record(Severity::kFault, kind, message, frame_address());
  if (worker == nullptr) abort();
  worker->give_up();
}

void wrong_tensor(int index, const char* what, int64_t wanted, int64_t got) {
  const InRuntime in_runtime;
  Finding finding;
  finding.severity = Severity::kFault;
  finding.kind = "tensor_argument";
  finding.message = "the kernel wants a tensor with " + std::string(what) + " " + text(wanted) +
                    " in buffer " + text(index) + ", got " + text(got);
  worker->record(std::move(finding), frame_address());
  worker->give_up();
}

Counters& counters() {
  static Counters outside_a_launch;
  return worker != nullptr ? worker->counters : outside_a_launch;
}

const EmuPolicies& policies() { return worker->launch.policies; }

const uint16_t* permutation(uint32_t key, int n) {
  const InRuntime in_runtime;
  for (const auto& known : worker->permutations) {
    if (known->key == key && static_cast<int>(known->order.size()) == n) return known->order.data();
  }
  auto made = std::make_unique<Permutation>();
  made->key = key;
  made->order.resize(n);
  std::iota(made->order.begin(), made->order.end(), uint16_t{0});
  std::minstd_rand random(static_cast<uint32_t>(policies().seed) * 7919u + key * 31u + 1u);
  std::shuffle(made->order.begin(), made->order.end(), random);
  worker->permutations.push_back(std::move(made));
  return worker->permutations.back()->order.data();
}

}  // namespace emu
