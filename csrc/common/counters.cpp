#include "common/counters.h"

#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace mto {
namespace {

using Key = std::tuple<std::string, std::string, std::string>;

std::mutex mutex;
std::map<Key, int64_t, std::less<>> counts;
thread_local bool counting = true;

}  // namespace

void count(std::string_view op, std::string_view backend, std::string_view outcome) {
  if (!counting) return;
  std::lock_guard<std::mutex> lock(mutex);
  auto at = counts.find(std::tie(op, backend, outcome));
  if (at == counts.end()) at = counts.emplace(Key(op, backend, outcome), 0).first;
  ++at->second;
}

Uncounted::Uncounted() : before_(std::exchange(counting, false)) {}
Uncounted::~Uncounted() { counting = before_; }

std::vector<Counter> counters() {
  std::lock_guard<std::mutex> lock(mutex);
  std::vector<Counter> out;
  for (const auto& [key, n] : counts) {
    out.emplace_back(std::get<0>(key), std::get<1>(key), std::get<2>(key), n);
  }
  return out;
}

void reset_counters() {
  std::lock_guard<std::mutex> lock(mutex);
  counts.clear();
}

}  // namespace mto
