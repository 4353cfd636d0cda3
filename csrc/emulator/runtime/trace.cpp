#include "trace.h"

#include <algorithm>
#include <cstring>

#include "pages.h"
#include "worker.h"

namespace emu {
namespace {

std::string name_of(const Place& place) {
  if (place.buffer >= 0) return "buffer " + text(place.buffer);
  return std::string("threadgroup variable ") + place.variable;
}

bool same_place(const Trace& a, const Trace& b) {
  return a.n == b.n && std::equal(a.pcs, a.pcs + a.n, b.pcs);
}

bool inside(const Place& place, size_t bytes) {
  return place.byte >= 0 && static_cast<uint64_t>(place.byte) + bytes <= place.bytes;
}

}  // namespace

void Tracer::start(uint32_t group, uint32_t n_simdgroups) {
  group_ = group;
  threadgroup_ = {};
  simdgroups_.assign(n_simdgroups, {});
  quads_.assign(n_simdgroups * (kLanes / kQuadLanes), {});
}

void Tracer::barrier(Scope scope, uint32_t lane, uint32_t flags) {
  Epochs& epochs = scope == kThreadgroup ? threadgroup_
                   : scope == kSimdgroup ? simdgroups_[lane / kLanes]
                                         : quads_[lane / kQuadLanes];
  if (flags & kMemDevice) ++epochs.of[kDevice];
  if (flags & kMemThreadgroup) ++epochs.of[kShared];
}

void Tracer::access(uintptr_t address, size_t bytes, Access access, uintptr_t frame, bool by_shim) {
  if (worker_.threadgroup.current() == nullptr || bytes == 0) return;
  settle();
  const Touch touch = touch_of(access, frame, by_shim);
  const Range range = {address, bytes};
  if (worker_.stacks.contains(address)) return check_stack(touch, range, frame);
  if (auto* variable = worker_.memory.find(address)) {
    return access_shared(*variable, touch, range, frame);
  }
  const Place place = worker_.launch.arena.locate(address);
  if (place.known()) access_device(place, touch, range, frame);
}

Touch Tracer::touch_of(Access access, uintptr_t frame, bool by_shim) {
  Touch touch = {};
  touch.group = group_;
  touch.lane = static_cast<uint16_t>(worker_.threadgroup.current()->index);
  const Fiber* member = worker_.threadgroup.acting();
  if (member != nullptr || by_shim) {
    touch.site.is_call = 1;
    touch.site.value = member != nullptr ? operation_of(*member)
                                         : call_of(*worker_.threadgroup.running(), frame, 0);
  } else {
    const uintptr_t return_address = reinterpret_cast<const uintptr_t*>(frame)[1];
    touch.site.value = static_cast<uint32_t>(return_address - 1 - library_base());
  }
  touch.access = access;
  return touch;
}

// All that an operation touches is touched in one meeting.
uint32_t Tracer::operation_of(const Fiber& member) {
  const Meeting& meeting = member.meeting;
  if (meeting.arrival != last_arrival_) {
    last_arrival_ = meeting.arrival;
    last_operation_ = call_of(member, meeting.frame, meeting.line);
  }
  return last_operation_;
}

// The frames have to be walked now; when the access turns out to be one side of a race, the thread
// is elsewhere.
uint32_t Tracer::call_of(const Fiber& lane, uintptr_t frame, int line) {
  Call call = {line, {}};
  const int index = static_cast<int>(lane.index);
  walk_frames(frame, reinterpret_cast<uintptr_t>(worker_.stacks.bottom(index)),
              reinterpret_cast<uintptr_t>(worker_.stacks.top(index)), call.trace);
  const auto is_it = [&call](const Call& other) {
    return other.line == call.line && same_place(other.trace, call.trace);
  };
  if (last_call_ < calls_.size() && is_it(calls_[last_call_])) return last_call_;
  const auto known = std::find_if(calls_.begin(), calls_.end(), is_it);
  last_call_ = static_cast<uint32_t>(known - calls_.begin());
  if (known == calls_.end()) calls_.push_back(call);
  return last_call_;
}

void Tracer::order(Touch& touch, Kind kind) const {
  touch.epoch = threadgroup_.of[kind];
  touch.simdgroup_epoch = simdgroups_[touch.lane / kLanes].of[kind];
  touch.quad_epoch = quads_[touch.lane / kQuadLanes].of[kind];
}

void Tracer::access_device(const Place& place, Touch touch, const Range& range, uintptr_t frame) {
  const size_t bytes = range.bytes;
  if (!inside(place, bytes)) {
    // Where pages are protected, the processor is about to say so.
    if (!worker_.launch.arena.accessible(place, bytes)) return;
    return report("device_out_of_bounds",
                  "access outside " + name_of(place) + ": byte " + text(place.byte) + " of its " +
                      text(static_cast<int64_t>(place.bytes)),
                  place, touch, bytes, frame);
  }
  const bool reads = touch.access == Access::kLoad;
  (reads ? read_bytes : written_bytes)[place.buffer] += bytes;
  Counters& counters = worker_.counters;
  (reads ? counters.device_read_bytes : counters.device_written_bytes) += bytes;
  order(touch, kDevice);
  Shadow& shadow = worker_.launch.shadows[place.buffer];
  Place racing = place;
  Race race;
  bool races = false;
  for (size_t i = 0; i < bytes; ++i) {
    Race here;
    if (shadow.cell(place.byte + i).touch(touch, here) || races) continue;
    races = true;
    race = here;
    racing.byte += static_cast<int64_t>(i);
  }
  if (races) report_race(race, racing, touch, range, frame);
}

void Tracer::access_shared(ThreadgroupMemory::Variable& variable, Touch touch, const Range& range,
                           uintptr_t frame) {
  const Place place = ThreadgroupMemory::place(variable, range.address);
  const size_t bytes = range.bytes;
  if (!inside(place, bytes)) {
    if (!ThreadgroupMemory::accessible(variable, place, bytes)) return;
    return report("threadgroup_out_of_bounds",
                  "access outside " + name_of(place) + ": byte " + text(place.byte) + " of its " +
                      text(static_cast<int64_t>(place.bytes)),
                  place, touch, bytes, frame);
  }
  const bool reads = touch.access == Access::kLoad;
  Counters& counters = worker_.counters;
  (reads ? counters.threadgroup_read_bytes : counters.threadgroup_written_bytes) += bytes;
  order(touch, kShared);
  Place unwritten = {};
  Place racing = {};
  Race race;
  for (size_t i = 0; i < bytes; ++i) {
    Cell& cell = variable.shadow->cell(place.byte + i);
    cell.start(group_);
    Place here = place;
    here.byte += static_cast<int64_t>(i);
    if (reads && !cell.written_by(group_) && !unwritten.known()) unwritten = here;
    Race found;
    if (cell.touch(touch, found) || racing.known()) continue;
    racing = here;
    race = found;
  }
  if (unwritten.known()) {
    report("uninitialised_threadgroup_memory",
           "load from " + name_of(place) + " before any thread stored there", unwritten, touch,
           bytes, frame);
  }
  if (racing.known()) report_race(race, racing, touch, range, frame);
}

// Thread memory is private: its address means nothing to another thread on a GPU.
void Tracer::check_stack(const Touch& touch, const Range& range, uintptr_t frame) {
  const uintptr_t address = range.address;
  const int index = static_cast<int>(worker_.threadgroup.running()->index);
  const auto top = reinterpret_cast<uintptr_t>(worker_.stacks.top(index));
  if (address < top && address >= reinterpret_cast<uintptr_t>(worker_.stacks.bottom(index))) return;
  report("thread_memory_of_another_thread", "access to a local variable of another thread", {},
         touch, range.bytes, frame);
}

void Tracer::report(const char* kind, const std::string& message, const Place& place,
                    const Touch& touch, size_t bytes, uintptr_t frame) {
  const InRuntime in_runtime;
  Finding finding;
  finding.kind = kind;
  finding.message = message;
  finding.place = place;
  finding.access = touch.access;
  finding.access_bytes = bytes;
  worker_.record(std::move(finding), frame);
}

void Tracer::report_race(const Race& race, const Place& place, const Touch& touch,
                         const Range& range, uintptr_t frame) {
  const InRuntime in_runtime;
  const bool same_group = race.group == touch.group;
  Finding finding;
  finding.kind = place.buffer >= 0 ? "device_race" : "threadgroup_race";
  finding.message = std::string(touch.access == Access::kLoad ? "load from " : "store to ") +
                    name_of(place) + " that " +
                    (same_group ? "another thread" : "another threadgroup") +
                    (race.with_store ? " stored" : " loaded") +
                    (same_group ? " without a barrier in between" : " in the same launch");
  finding.place = place;
  finding.access = touch.access;
  finding.access_bytes = range.bytes;
  finding.other_lane = race.lane;
  if (race.site.is_call) {
    finding.other_line = calls_[race.site.value].line;
    finding.other_trace = calls_[race.site.value].trace;
  } else {
    finding.other_trace.n = 1;
    finding.other_trace.pcs[0] = library_base() + race.site.value;
  }
  const bool may_repeat = race.with_store && !race.with_atomic && touch.access == Access::kStore;
  if (!may_repeat) return worker_.record(std::move(finding), frame);
  worker_.locate(finding, frame);
  pending_ = std::move(finding);
  pending_address_ = range.address;
  const auto* data = reinterpret_cast<const char*>(range.address);
  pending_before_.assign(data, data + range.bytes);
}

// Kernels let the last of several tiles overlap its neighbour and compute some results twice:
// storing what is there already does no harm.
void Tracer::settle() {
  if (pending_address_ == 0) return;
  const InRuntime in_runtime;
  const auto* data = reinterpret_cast<const char*>(pending_address_);
  if (memcmp(data, pending_before_.data(), pending_before_.size()) == 0) {
    pending_.kind = "same_value_race";
    pending_.severity = Severity::kNote;
    pending_.message += ": the same value";
  }
  findings().add(std::move(pending_));
  pending_ = {};
  pending_address_ = 0;
}

}  // namespace emu
