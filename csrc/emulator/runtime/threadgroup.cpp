#include "threadgroup.h"

#include "worker.h"

namespace emu {

bool Threadgroup::run(const TGInfo& info, uint32_t seed) {
  info_ = info;
  abandoned_ = false;
  start_lanes();
  ready_.reset(static_cast<int>(fibers_.size()), worker_.launch.policies.order, seed);
  worker_.memory.reset();
  Fiber& first = fibers_[ready_.take()];
  running_ = &first;
  emu_swap(&main_context_, first.context);
  running_ = acting_ = nullptr;
  return !abandoned_;
}

void Threadgroup::start_lanes() {
  const uint32_t* threads = info_.threads;
  const int n = static_cast<int>(threads[0] * threads[1] * threads[2]);
  auto fill = [n](std::vector<Group>& groups, int unit) {
    groups.clear();
    for (int first = 0; first < n; first += unit) {
      const int size = first + unit <= n ? unit : n - first;
      groups.push_back({first, size, size, 0});
    }
  };
  fill(quads_, kQuadLanes);
  fill(simdgroups_, kLanes);
  all_ = {0, n, n, 0};
  slots_.resize(n);
  fibers_.resize(n);
  for (int i = 0; i < n; ++i) {
    Fiber& fiber = fibers_[i];
    const auto index = static_cast<uint32_t>(i);
    fiber.lane = index % kLanes;
    fiber.simdgroup = index / kLanes;
    fiber.index = index;
    fiber.position[0] = index % threads[0];
    fiber.position[1] = index / threads[0] % threads[1];
    fiber.position[2] = index / (threads[0] * threads[1]);
    fiber.state = State::kReady;
    fiber.context = first_context(worker_.stacks.top(i), fiber_main);
  }
}

void Threadgroup::fiber_main() {
  Worker& self = *worker;
  if (kValues) self.values.clear_parameters();
  self.in_runtime = false;
  self.launch.kernel(self.launch.arena.bindings());
  self.in_runtime = true;
  self.threadgroup.finish(*self.threadgroup.running_);
  __builtin_unreachable();
}

void Threadgroup::finish(Fiber& fiber) {
  worker_.tracer.settle();
  worker_.values.settle();
  fiber.state = State::kDone;
  leave(group_of(fiber, kQuad), kQuad);
  leave(group_of(fiber, kSimdgroup), kSimdgroup);
  leave(all_, kThreadgroup);
  run_next();
}

// The others no longer wait for a thread that ended.
void Threadgroup::leave(Group& group, Scope scope) {
  --group.alive;
  if (group.alive > 0 && group.waiting == group.alive) complete(group, scope);
}

Group& Threadgroup::group_of(const Fiber& fiber, Scope scope) {
  switch (scope) {
    case kQuad:
      return quads_[fiber.index / kQuadLanes];
    case kSimdgroup:
      return simdgroups_[fiber.simdgroup];
    default:
      return all_;
  }
}

void Threadgroup::meet(const Meeting& meeting) {
  worker_.tracer.settle();
  worker_.values.settle();
  Fiber& me = *running_;
  me.meeting = meeting;
  me.meeting.arrival = ++arrivals_;
  me.state = State::kWaiting;
  Group& group = group_of(me, meeting.scope);
  if (++group.waiting == group.alive) complete(group, meeting.scope);
  run_next();
}

void Threadgroup::run_next() {
  if (worker_.launch.given_up.load(std::memory_order_relaxed)) abandon();
  for (;;) {
    const int index = ready_.take();
    if (index >= 0) return switch_to(index);
    if (resolve()) continue;
    void* ended;
    emu_swap(&ended, main_context_);
  }
}

void Threadgroup::switch_to(int index) {
  Fiber& from = *running_;
  running_ = &fibers_[index];
  if (running_ != &from) emu_swap(&from.context, running_->context);
}

void Threadgroup::abandon() {
  worker_.in_runtime = true;
  abandoned_ = true;
  void* left;
  emu_swap(&left, main_context_);
  __builtin_unreachable();
}

// Nothing can run: the threads that wait cannot meet all others of their scope. Lets the smallest
// scope go on with those that are there. False: all threads have ended.
bool Threadgroup::resolve() {
  auto complete_one = [this](std::vector<Group>& groups, Scope scope) {
    for (Group& group : groups) {
      if (group.waiting == 0) continue;
      complete(group, scope);
      return true;
    }
    return false;
  };
  if (complete_one(quads_, kQuad) || complete_one(simdgroups_, kSimdgroup)) return true;
  if (all_.waiting == 0) return false;
  complete(all_, kThreadgroup);
  return true;
}

void Threadgroup::complete(Group& group, Scope scope) {
  Fiber* lanes = &fibers_[group.first];
  // Where lanes wait in different operations, the longest wait goes first: it is the branch that
  // the others have left or not reached, so they can still meet after it.
  Fiber* oldest = nullptr;
  for (int i = 0; i < group.size; ++i) {
    if (lanes[i].state != State::kWaiting || lanes[i].meeting.scope != scope) continue;
    if (oldest == nullptr || lanes[i].meeting.arrival < oldest->meeting.arrival) oldest = &lanes[i];
  }
  const Meeting meeting = oldest->meeting;
  int n_active = 0;
  acting_ = nullptr;
  for (int i = 0; i < group.size; ++i) {
    const bool here = lanes[i].state == State::kWaiting && lanes[i].meeting.meets(meeting);
    slots_[i] = here ? lanes[i].meeting.slot : nullptr;
    n_active += here;
    if (here && acting_ == nullptr) acting_ = &lanes[i];
  }
  judge(group, meeting, n_active);
  if (kValues) worker_.values.clear_parameters();
  if (meeting.compute != nullptr) meeting.compute(slots_.data(), group.size, n_active);
  acting_ = nullptr;
  for (int i = 0; i < group.size; ++i) {
    if (slots_[i] == nullptr) continue;
    lanes[i].state = State::kReady;
    ready_.add(group.first + i);
    --group.waiting;
  }
}

// Counts the meeting and reports lanes that are missing from it.
void Threadgroup::judge(const Group& group, const Meeting& meeting, int n_active) {
  const bool whole = meeting.scope == kThreadgroup;
  if (!meeting.is_barrier) {
    ++worker_.counters.simd_ops;
  } else {
    Counters& counters = worker_.counters;
    ++(whole                         ? counters.threadgroup_barriers
       : meeting.scope == kSimdgroup ? counters.simdgroup_barriers
                                     : counters.quadgroup_barriers);
    worker_.tracer.barrier(meeting.scope, acting_->index, meeting.flags);
  }
  if (n_active == group.size || meeting.any_lanes) return;
  Finding finding;
  finding.message = std::string(meeting.what) + " with " + text(n_active) + " of " +
                    text(group.size) + " threads: the others " +
                    (n_active == group.alive ? "have ended" : "are elsewhere or have ended");
  finding.line = meeting.line;
  if (n_active < group.alive) {
    finding.kind = meeting.is_barrier || whole ? "divergent_barrier" : "divergent_simd_op";
  } else if (meeting.is_barrier || whole) {
    finding.kind = "barrier_with_exited_threads";
  } else {
    finding.kind = "simd_op_with_exited_threads";
    finding.severity = Severity::kNote;
  }
  worker_.record(std::move(finding), meeting.frame);
}

}  // namespace emu
