#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace mto {

// How often each op ran: outcome is "fused" for every launch of a kernel of ours, or the reason why
// a call was given to MLX's own op.
void count(std::string_view op, std::string_view backend, std::string_view outcome);

// While one lives, nothing that its thread does is counted: kernels that run to be verified.
class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
  Uncounted(const Uncounted&) = delete;

 private:
  bool before_;
};

using Counter = std::tuple<std::string, std::string, std::string, int64_t>;
std::vector<Counter> counters();
void reset_counters();

}  // namespace mto
