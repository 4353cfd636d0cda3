// Every task runs once, from several threads at a time and while the number of threads changes.

#include <atomic>
#include <thread>
#include <vector>

#include "cpu/thread_pool.h"
#include "harness.h"

using test::check;

namespace {

bool each_once(int64_t n) {
  std::vector<std::atomic<int>> counts(n);
  mto::parallel_for(n, [&](int64_t i) { counts[i].fetch_add(1); });
  for (auto& count : counts) {
    if (count.load() != 1) return false;
  }
  return true;
}

}  // namespace

int main() {
  for (int n_threads : {1, 2, 5}) {
    mto::set_num_threads(n_threads);
    check(mto::num_threads() == n_threads, "num_threads");
    for (int64_t n : {0, 1, 2, 3, 100, 1000}) {
      for (int round = 0; round < 50; ++round) check(each_once(n), "n = " + std::to_string(n));
    }
  }
  std::atomic<int> n_wrong{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) n_wrong += !each_once(64);
    });
  }
  for (int n_threads : {3, 1, 4, 2}) mto::set_num_threads(n_threads);
  for (auto& caller : callers) caller.join();
  check(n_wrong.load() == 0, "callers on several threads");
  char* scratch = static_cast<char*>(mto::thread_scratch(1000));
  check(reinterpret_cast<uintptr_t>(scratch) % 64 == 0, "scratch is aligned");
  std::memset(mto::thread_scratch(100000), 1, 100000);
  return test::finish("thread pool");
}
