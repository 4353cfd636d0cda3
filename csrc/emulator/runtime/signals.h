#pragma once

#include <pthread.h>
#include <signal.h>

#include <cstddef>

namespace emu {

class Worker;

// While it exists, a signal that a kernel thread raises (a fault on a guard page, a division by
// zero, a trap of the compiler) ends the launch instead of the process. Signals of all other
// threads go to the handlers that were there before.
class SignalHandlers {
 public:
  // Sent to the threads of a launch that takes too long. Ignored by default, so one that arrives
  // late does no harm.
  static constexpr int kInterrupt = SIGURG;

  // Of a launch. More OS threads than that are of no use.
  static constexpr int kMostWorkers = 256;

  SignalHandlers();
  SignalHandlers(const SignalHandlers&) = delete;
  SignalHandlers& operator=(const SignalHandlers&) = delete;
  ~SignalHandlers();
  // Makes a worker of a launch that was given up leave its kernel, if it is in code of the kernel
  // right now. The caller repeats it until the worker has ended.
  static void interrupt(pthread_t thread);
};

// Tells the handlers that a signal of this OS thread is about the worker.
class KnownToHandlers {
 public:
  explicit KnownToHandlers(Worker& worker);
  KnownToHandlers(const KnownToHandlers&) = delete;
  KnownToHandlers& operator=(const KnownToHandlers&) = delete;
  ~KnownToHandlers();

 private:
  int slot_;
};

// A stack for the handlers of this OS thread: that of the kernel thread may be what overflowed.
class SignalStack {
 public:
  SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;
  ~SignalStack();

 private:
  stack_t previous_;
  char* memory_;
};

}  // namespace emu
