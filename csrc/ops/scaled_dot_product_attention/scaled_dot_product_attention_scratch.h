#pragma once

// The scratch memory of a kernel, cut into aligned pieces.

#include "cpu/thread_pool.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_pack.h"

namespace mto::MTO_ISA {
namespace {

// Without a buffer it only counts.
class Cutter {
 public:
  explicit Cutter(void* base = nullptr) : base_(static_cast<char*>(base)) {}
  template <typename T = float>
  T* take(int64_t n) {
    auto at = reinterpret_cast<T*>(base_ + used_);
    used_ += round_up(n * sizeof(T), 64);
    return at;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

// Calls cut(cutter) on a buffer of the size that it takes.
template <typename F>
auto scratch(F&& cut) {
  Cutter counting;
  cut(counting);
  Cutter cutter(thread_scratch(counting.used()));
  return cut(cutter);
}

}  // namespace
}  // namespace mto::MTO_ISA
