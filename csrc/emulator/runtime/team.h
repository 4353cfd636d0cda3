#pragma once

#include <pthread.h>

#include <memory>
#include <vector>

#include "worker.h"

namespace emu {

// The OS threads of a launch.
class Team {
 public:
  Team(Launch& launch, int n_workers);
  // Ends when all workers have; after the launch's time limit it makes them.
  void join();
  const std::vector<std::unique_ptr<Worker>>& workers() const { return workers_; }
  bool out_of_memory() const;

 private:
  static void* run_worker(void* worker);
  bool join_until(timespec deadline);
  void record_time_limit() const;

  Launch& launch_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<pthread_t> threads_;
  size_t n_joined_ = 0;
};

}  // namespace emu
