#include <algorithm>

#include "threadgroup.h"

namespace emu {

void Ready::reset(int n_lanes, int order, uint32_t seed) {
  for (uint64_t& word : words_) word = 0;
  for (int i = 0; i < n_lanes; ++i) add(i);
  order_ = order;
  if (order != EMU_RANDOM) return;
  random_.seed(seed);
  priority_.resize((n_lanes + kLanes - 1) / kLanes);
  for (size_t i = 0; i < priority_.size(); ++i) priority_[i] = static_cast<uint8_t>(i);
  std::shuffle(priority_.begin(), priority_.end(), random_);
}

int Ready::take() {
  if (order_ == EMU_RANDOM) return take_random();
  for (int i = 0; i < kWords; ++i) {
    const int word = order_ == EMU_REVERSE ? kWords - 1 - i : i;
    if (words_[word] == 0) continue;
    const int bit =
        order_ == EMU_REVERSE ? 63 - __builtin_clzll(words_[word]) : __builtin_ctzll(words_[word]);
    words_[word] &= ~(uint64_t{1} << bit);
    return word * 64 + bit;
  }
  return -1;
}

int Ready::take_random() {
  // Rare enough that one simdgroup gets far ahead of another, which is what finds missing barriers.
  constexpr uint32_t kPicksBetweenChanges = 64;
  if (random_() % kPicksBetweenChanges == 0) {
    std::swap(priority_[random_() % priority_.size()], priority_[0]);
  }
  for (const int simdgroup : priority_) {
    const auto lanes = static_cast<uint32_t>(words_[simdgroup / 2] >> (simdgroup % 2 * kLanes));
    if (lanes != 0) return take_lane(simdgroup, lanes);
  }
  return -1;
}

int Ready::take_lane(int simdgroup, uint32_t lanes) {
  for (uint32_t skip = random_() % __builtin_popcount(lanes); skip > 0; --skip) lanes &= lanes - 1;
  const int index = simdgroup * static_cast<int>(kLanes) + __builtin_ctz(lanes);
  words_[index / 64] &= ~(uint64_t{1} << (index % 64));
  return index;
}

}  // namespace emu
