#include "cpu/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif

namespace mto {
namespace {

int threads_from_environment() {
  for (const char* name : {"MLX_TENSOROPS_NUM_THREADS", "OMP_NUM_THREADS"}) {
    const char* value = std::getenv(name);
    int n = value ? std::atoi(value) : 0;
    if (n > 0) return std::min(n, 1024);
  }
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

inline void pause() {
#if defined(__x86_64__) || defined(_M_X64)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How often a waiting worker looks before it sleeps: tens of microseconds, the distance between two
// ops of a model; waking a sleeping thread costs as much as a small op.
constexpr int kSpins = 2000;

class Pool {
 public:
  ~Pool() { stop_workers(); }

  void run(int64_t n, const std::function<void(int64_t)>& f) {
    std::unique_lock<std::mutex> owner(owner_, std::try_to_lock);
    if (n == 1 || !owner.owns_lock() || n_threads_ == 1) {
      for (int64_t i = 0; i < n; ++i) f(i);
      return;
    }
    start_workers();
    f_ = &f;
    n_ = n;
    next_.store(0, std::memory_order_relaxed);
    gate_.fetch_or(kOpen, std::memory_order_release);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    work();
    // All work is taken. Workers that are inside are waited for; those still asleep find the gate
    // closed.
    gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
    while (gate_.load(std::memory_order_acquire) != 0) pause();
  }

  int size() {
    std::lock_guard<std::mutex> owner(owner_);
    return n_threads_;
  }

  void resize(int n) {
    std::lock_guard<std::mutex> owner(owner_);
    stop_workers();
    n_threads_ = std::max(1, n);
  }

 private:
  void start_workers() {
    while (static_cast<int>(workers_.size()) < n_threads_ - 1) {
      workers_.emplace_back([this, seen = generation_.load()] { loop(seen); });
    }
  }

  void stop_workers() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
    workers_.clear();
    stopping_ = false;
  }

  void loop(uint64_t seen) {
    while (true) {
      int spins = 0;
      while (generation_.load(std::memory_order_acquire) == seen && ++spins < kSpins) pause();
      if (generation_.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
      }
      seen = generation_.load(std::memory_order_acquire);
      if (stopping_) return;
      if (gate_.fetch_add(1, std::memory_order_acq_rel) & kOpen) work();
      gate_.fetch_sub(1, std::memory_order_release);
    }
  }

  void work() {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n_;) (*f_)(i);
  }

  std::mutex owner_;  // held by the thread whose loop is running
  std::mutex mutex_;  // guards the sleep of the workers
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
  int n_threads_ = threads_from_environment();
  bool stopping_ = false;
  const std::function<void(int64_t)>* f_ = nullptr;
  int64_t n_ = 0;
  std::atomic<int64_t> next_{0};
  // kOpen while a loop may be joined, plus the number of workers inside.
  static constexpr int kOpen = 1 << 30;
  std::atomic<int> gate_{0};
  std::atomic<uint64_t> generation_{0};
};

std::atomic<Pool*> current_pool{nullptr};

// A pool is never destroyed: MLX's stream threads may still run tasks while static objects are. A
// forked child has none of its parent's threads, and locks as they happened to be: it starts with a
// pool of its own.
Pool& pool() {
  static const int forked = pthread_atfork(nullptr, nullptr, [] { current_pool = new Pool; });
  static_cast<void>(forked);
  Pool* found = current_pool.load(std::memory_order_acquire);
  if (found) return *found;
  auto* made = new Pool;
  if (current_pool.compare_exchange_strong(found, made)) return *made;
  delete made;
  return *found;
}

}  // namespace

void parallel_for(int64_t n, const std::function<void(int64_t)>& f) {
  if (n > 0) pool().run(n, f);
}

int num_threads() { return pool().size(); }

void set_num_threads(int n) { pool().resize(n); }

void* thread_scratch(size_t n_bytes) {
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  static thread_local std::unique_ptr<void, Free> buffer;
  static thread_local size_t capacity = 0;
  if (capacity < n_bytes) {
    capacity = (n_bytes + 4095) / 4096 * 4096;
    buffer.reset(std::aligned_alloc(64, capacity));
  }
  return buffer.get();
}

}  // namespace mto
