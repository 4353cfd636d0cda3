#include "worker.h"

#include <algorithm>
#include <numeric>

#include "signals.h"

namespace emu {

thread_local Worker* worker = nullptr;

Findings& findings() {
  static Findings all;
  return all;
}

bool Worker::run() {
  const uint32_t* threads = launch.threads;
  const size_t stack_kib = static_cast<size_t>(std::max(launch.policies.stack_kib, 0));
  const size_t stack_bytes = stack_kib > 0 ? stack_kib * 1024 : Stacks::kUsualBytes;
  const int n_threads = static_cast<int>(threads[0] * threads[1] * threads[2]);
  if (!stacks.map(n_threads, stack_bytes)) return false;
  if (kValues && !values.start()) return false;
  const SignalStack signal_stack;
  const KnownToHandlers known(*this);
  worker = this;
  const uint64_t total = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  while (!launch.given_up) {
    const uint64_t turn = launch.next++;
    if (turn >= total) break;
    const uint64_t index = pick(turn, total);
    const TGInfo info = info_of(index);
    const auto seed = static_cast<uint32_t>(launch.policies.seed * 1000003 + index);
    tracer.start(static_cast<uint32_t>(index + 1), info.simdgroups);
    const bool ended = threadgroup.run(info, seed);
    tracer.settle();
    values.settle();
    if (!ended) record_trap();
    counters.threadgroup_bytes =
        std::max<uint64_t>(counters.threadgroup_bytes, memory.live_bytes());
  }
  worker = nullptr;
  return true;
}

// Which threadgroup runs next, under the launch's order.
uint64_t Worker::pick(uint64_t turn, uint64_t total) const {
  const EmuPolicies& policies = launch.policies;
  if (policies.order == EMU_REVERSE) return total - 1 - turn;
  if (policies.order != EMU_RANDOM) return turn;
  // A stride without a common divisor visits every threadgroup once.
  uint64_t stride = (static_cast<uint64_t>(policies.seed) * 2654435761u + 40503u) % total;
  while (std::gcd(stride, total) != 1) ++stride;
  return (turn * stride + static_cast<uint64_t>(policies.seed)) % total;
}

TGInfo Worker::info_of(uint64_t index) const {
  TGInfo info;
  const uint32_t* grid = launch.grid;
  info.position[0] = static_cast<uint32_t>(index % grid[0]);
  info.position[1] = static_cast<uint32_t>(index / grid[0] % grid[1]);
  info.position[2] = static_cast<uint32_t>(index / (uint64_t{grid[0]} * grid[1]));
  uint32_t n = 1;
  for (int d = 0; d < 3; ++d) {
    info.grid[d] = grid[d];
    info.grid_threads[d] = launch.grid_threads[d];
    info.full_threads[d] = launch.threads[d];
    const uint32_t left = launch.grid_threads[d] - info.position[d] * launch.threads[d];
    info.threads[d] = std::min(launch.threads[d], left);
    n *= info.threads[d];
  }
  info.simdgroups = (n + kLanes - 1) / kLanes;
  return info;
}

Who Worker::who() const {
  Who who;
  for (int d = 0; d < 3; ++d) who.threadgroup[d] = threadgroup.info().position[d];
  const Fiber* fiber = threadgroup.current();
  if (fiber != nullptr) who.lane = static_cast<int>(fiber->index);
  return who;
}

void Worker::locate(Finding& finding, uintptr_t frame) const {
  finding.who = who();
  const Fiber* fiber = threadgroup.running();
  if (fiber == nullptr) return;
  // What an operation finds belongs to where its threads called it.
  if (const Fiber* member = threadgroup.acting()) {
    fiber = member;
    frame = member->meeting.frame;
    if (finding.line == 0) finding.line = member->meeting.line;
  }
  const int index = static_cast<int>(fiber->index);
  walk_frames(frame, reinterpret_cast<uintptr_t>(stacks.bottom(index)),
              reinterpret_cast<uintptr_t>(stacks.top(index)), finding.trace);
}

void Worker::record(Finding finding, uintptr_t frame) {
  locate(finding, frame);
  findings().add(std::move(finding));
}

void Worker::give_up() {
  launch.given_up = true;
  threadgroup.abandon();
}

}  // namespace emu
