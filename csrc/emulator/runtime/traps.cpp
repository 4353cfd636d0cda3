#include "signals.h"
#include "worker.h"

// Turns what a signal handler noted down into a finding in words of the kernel.

namespace emu {
namespace {

// Addresses this low come from a null pointer plus an offset.
constexpr uintptr_t kNullBytes = 1 << 16;

std::string offset_text(const Place& place) {
  return "byte " + text(place.byte) + " of its " + text(place.bytes);
}

void describe_device(Finding& finding, const Arena& arena) {
  const std::string buffer = "buffer " + text(finding.place.buffer);
  if (!arena.bound(finding.place.buffer)) {
    finding.kind = "unbound_buffer";
    finding.message = "access to " + buffer + ", which is not bound";
    return;
  }
  finding.kind = "device_out_of_bounds";
  finding.message = "access outside " + buffer + ": " + offset_text(finding.place);
}

void describe_access(Finding& finding, const Trap& trap, Worker& worker) {
  finding.access = trap.access;
  finding.place = worker.launch.arena.locate(trap.address);
  if (finding.place.known()) return describe_device(finding, worker.launch.arena);
  if (const auto* variable = worker.memory.find(trap.address)) {
    finding.place = ThreadgroupMemory::place(*variable, trap.address);
    finding.kind = "threadgroup_out_of_bounds";
    finding.message = std::string("access outside threadgroup variable ") + variable->name + ": " +
                      offset_text(finding.place);
    return;
  }
  if (worker.stacks.overflowed(trap.stack, trap.address)) {
    finding.kind = "stack_overflow";
    finding.message = "the stack of a thread is too small for its local variables";
    return;
  }
  finding.kind = "wild_access";
  finding.message = trap.address < kNullBytes
                        ? "access through a null pointer"
                        : "access to memory that belongs to no buffer and no variable";
}

}  // namespace

void Worker::record_trap() {
  if (trap.signal == 0 || trap.signal == SignalHandlers::kInterrupt) return;
  Finding finding;
  finding.severity = Severity::kFault;
  switch (trap.signal) {
    case SIGFPE:
      finding.kind = "integer_division";
      finding.message = "integer division by zero, or of the smallest integer by -1";
      break;
    case SIGILL:
    case SIGTRAP:
      finding.kind = "undefined_behaviour";
      finding.message = "the kernel reached code that the compiler proved to be undefined";
      break;
    default:
      describe_access(finding, trap, *this);
  }
  finding.who = trap.who;
  finding.trace = trap.trace;
  findings().add(std::move(finding));
}

}  // namespace emu
