#include "signals.h"

#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "pages.h"
#include "worker.h"

// The end of this library's image, defined by the linker.
extern "C" __attribute__((visibility("hidden"))) char _end[];

namespace emu {
namespace {

constexpr int kInterrupt = SignalHandlers::kInterrupt;
constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, kInterrupt};
constexpr int kCount = sizeof kSignals / sizeof *kSignals;
constexpr size_t kSignalStackBytes = 64 * 1024;

struct sigaction previous[kCount];

// The worker of each OS thread that has one. Handlers look here instead of in thread-local storage:
// the first use of that in a thread allocates, and the signal may have interrupted an allocation.
struct Slot {
  std::atomic<long> thread;  // 0: free
  Worker* worker;
};
Slot slots[SignalHandlers::kMostWorkers];

long this_thread() { return syscall(SYS_gettid); }

Worker* worker_of_this_thread() {
  const long thread = this_thread();
  for (const Slot& slot : slots) {
    if (slot.thread == thread) return slot.worker;
  }
  return nullptr;
}

struct Registers {
  uintptr_t pc;
  uintptr_t frame;
};

// What the interrupted thread was doing.
Registers registers_of(const ucontext_t& context) {
#if defined(__x86_64__)
  const greg_t* registers = context.uc_mcontext.gregs;
  return {static_cast<uintptr_t>(registers[REG_RIP]), static_cast<uintptr_t>(registers[REG_RBP])};
#else
  return {context.uc_mcontext.pc, context.uc_mcontext.regs[29]};
#endif
}

#if defined(__aarch64__)
// The exception syndrome, one of the records that follow the registers; zero if there is none.
uint64_t syndrome_of(const ucontext_t& context) {
  constexpr uint32_t kSyndromeRecord = 0x45535201;  // ESR_MAGIC of asm/sigcontext.h
  const auto* record = reinterpret_cast<const char*>(context.uc_mcontext.__reserved);
  const char* end = record + sizeof context.uc_mcontext.__reserved;
  while (record + 16 <= end) {
    uint32_t header[2];  // magic and size
    memcpy(header, record, sizeof header);
    if (header[1] < sizeof header) return 0;
    uint64_t value;
    memcpy(&value, record + sizeof header, sizeof value);
    if (header[0] == kSyndromeRecord) return value;
    record += header[1];
  }
  return 0;
}
#endif

Access access_of(int signal, const ucontext_t& context) {
  if (signal != SIGSEGV && signal != SIGBUS) return Access::kNone;
#if defined(__x86_64__)
  // Bit 1 of the error code that the processor pushes for a page fault: a write.
  return context.uc_mcontext.gregs[REG_ERR] & 2 ? Access::kStore : Access::kLoad;
#else
  const uint64_t syndrome = syndrome_of(context);
  if (syndrome == 0) return Access::kUnknown;
  return syndrome & (1 << 6) ? Access::kStore : Access::kLoad;  // WnR of a data abort
#endif
}

// Makes the interrupted thread continue in emu_swap(&landing.scrap, to) on the landing's stack.
void resume_at(ucontext_t& context, Landing& landing, void* to) {
  const auto top = reinterpret_cast<uintptr_t>(landing.stack + sizeof landing.stack);
#if defined(__x86_64__)
  greg_t* registers = context.uc_mcontext.gregs;
  registers[REG_RDI] = reinterpret_cast<greg_t>(&landing.scrap);
  registers[REG_RSI] = reinterpret_cast<greg_t>(to);
  registers[REG_RSP] = static_cast<greg_t>(top - 8);
  registers[REG_RIP] = reinterpret_cast<greg_t>(&emu_swap);
#else
  context.uc_mcontext.regs[0] = reinterpret_cast<uintptr_t>(&landing.scrap);
  context.uc_mcontext.regs[1] = reinterpret_cast<uintptr_t>(to);
  context.uc_mcontext.sp = top;
  context.uc_mcontext.pc = reinterpret_cast<uintptr_t>(&emu_swap);
#endif
}

void pass_on(int signal, siginfo_t* info, void* context) {
  for (int i = 0; i < kCount; ++i) {
    if (kSignals[i] != signal) continue;
    const struct sigaction& before = previous[i];
    if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(signal, info, context);
    if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
      return before.sa_handler(signal);
    }
    if (signal == kInterrupt) return;
    // The instruction runs again and raises it once more, now with the default effect.
    sigaction(signal, &before, nullptr);
  }
}

// Whether the code is that of the kernel or of the runtime, not of a system library.
bool in_library(uintptr_t pc) {
  return pc >= library_base() && pc < reinterpret_cast<uintptr_t>(_end);
}

bool is_ours(const Worker* self, int signal, const siginfo_t* info, uintptr_t pc) {
  if (self == nullptr || self->threadgroup.running() == nullptr) return false;
  if (signal == kInterrupt) return self->launch.given_up && !self->in_runtime && in_library(pc);
  const bool sent_by_a_process = info->si_code <= 0;
  return !sent_by_a_process;
}

void on_signal(int signal, siginfo_t* info, void* raw_context) {
  auto& context = *static_cast<ucontext_t*>(raw_context);
  Worker* self = worker_of_this_thread();
  const Registers registers = registers_of(context);
  if (!is_ours(self, signal, info, registers.pc)) return pass_on(signal, info, raw_context);
  // Only notes down what it sees: allocating is not safe here.
  Trap& trap = self->trap;
  trap.signal = signal;
  trap.address = reinterpret_cast<uintptr_t>(info->si_addr);
  trap.access = access_of(signal, context);
  trap.trace.n = 1;
  trap.trace.pcs[0] = registers.pc;
  const int index = static_cast<int>(self->threadgroup.running()->index);
  walk_frames(registers.frame, reinterpret_cast<uintptr_t>(self->stacks.bottom(index)),
              reinterpret_cast<uintptr_t>(self->stacks.top(index)), trap.trace);
  trap.who = self->who();
  trap.stack = index;
  self->in_runtime = true;
  self->launch.given_up = true;
  self->threadgroup.mark_abandoned();
  resume_at(context, self->landing, self->threadgroup.main_context());
}

}  // namespace

void SignalHandlers::interrupt(pthread_t thread) { pthread_kill(thread, kInterrupt); }

SignalHandlers::SignalHandlers() {
  for (Slot& slot : slots) slot.thread = 0;  // a fork during a launch leaves them behind
  library_base();  // looked up now: a handler could find the dynamic linker's lock taken
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < kCount; ++i) sigaction(kSignals[i], &action, &previous[i]);
}

SignalHandlers::~SignalHandlers() {
  for (int i = 0; i < kCount; ++i) sigaction(kSignals[i], &previous[i], nullptr);
}

KnownToHandlers::KnownToHandlers(Worker& worker) {
  for (slot_ = 0; slot_ < SignalHandlers::kMostWorkers; ++slot_) {
    Slot& slot = slots[slot_];
    long unused = 0;
    // Until the worker is there, the slot belongs to no thread.
    if (!slot.thread.compare_exchange_strong(unused, -1)) continue;
    slot.worker = &worker;
    slot.thread = this_thread();
    return;
  }
  abort();
}

KnownToHandlers::~KnownToHandlers() { slots[slot_].thread = 0; }

SignalStack::SignalStack() : memory_(static_cast<char*>(malloc(kSignalStackBytes))) {
  stack_t stack = {};
  stack.ss_sp = memory_;
  stack.ss_size = kSignalStackBytes;
  sigaltstack(&stack, &previous_);
}

SignalStack::~SignalStack() {
  sigaltstack(&previous_, nullptr);
  free(memory_);
}

}  // namespace emu
