#include "team.h"

#include <time.h>

#include "signals.h"

namespace emu {
namespace {

timespec in_milliseconds(int64_t n) {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  const int64_t nanoseconds = time.tv_nsec + n * 1000000;
  time.tv_sec += nanoseconds / 1000000000;
  time.tv_nsec = nanoseconds % 1000000000;
  return time;
}

}  // namespace

Team::Team(Launch& launch, int n_workers) : launch_(launch) {
  for (int i = 0; i < n_workers; ++i) {
    auto worker = std::make_unique<Worker>(launch);
    pthread_t thread;
    if (pthread_create(&thread, nullptr, run_worker, worker.get()) != 0) break;
    threads_.push_back(thread);
    workers_.push_back(std::move(worker));
  }
}

void* Team::run_worker(void* raw_worker) {
  auto& self = *static_cast<Worker*>(raw_worker);
  if (!self.run()) {
    self.out_of_memory = true;
    self.launch.given_up = true;
  }
  return nullptr;
}

void Team::join() {
  const int limit_ms = launch_.policies.time_limit_ms;
  // Longer than any launch lasts.
  constexpr int64_t kNoLimit = int64_t{1} << 40;
  if (join_until(in_milliseconds(limit_ms > 0 ? limit_ms : kNoLimit))) return;
  launch_.given_up = true;
  do {
    for (size_t i = n_joined_; i < threads_.size(); ++i) SignalHandlers::interrupt(threads_[i]);
  } while (!join_until(in_milliseconds(10)));
  record_time_limit();
}

bool Team::join_until(timespec deadline) {
  while (n_joined_ < threads_.size()) {
    if (pthread_timedjoin_np(threads_[n_joined_], nullptr, &deadline) != 0) return false;
    ++n_joined_;
  }
  return true;
}

bool Team::out_of_memory() const {
  for (const auto& worker : workers_) {
    if (worker->out_of_memory) return true;
  }
  return workers_.empty();
}

// Names a thread that had to be interrupted, if there is one.
void Team::record_time_limit() const {
  Finding finding;
  finding.severity = Severity::kFault;
  finding.kind = "time_limit";
  finding.message = "the launch took longer than " + text(launch_.policies.time_limit_ms) + " ms";
  for (const auto& worker : workers_) {
    if (worker->trap.signal != SignalHandlers::kInterrupt) continue;
    finding.who = worker->trap.who;
    finding.trace = worker->trap.trace;
    break;
  }
  findings().add(std::move(finding));
}

}  // namespace emu
