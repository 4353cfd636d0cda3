#pragma once

#include "common/float_type.h"

namespace mto {

// w_q, scales, biases of w [n_groups, group_size], groups row after row.
struct QuantizeParams {
  const void* w;
  uint8_t* w_q;
  void* scales;
  void* biases;
  FloatType type;
  int64_t n_groups;
  int bits;
  int group_size;
};

}  // namespace mto
