#pragma once

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention.h"

namespace mto {

// That the operands fit each other. `op` may be another one that takes the same options.
void check_attention_operands(std::string_view op, const mx::array& q, const mx::array& k,
                              const mx::array& v);

// A call in canonical form: the primitive's inputs and settings.
struct AttentionCall {
  std::vector<mx::array> inputs;
  AttentionSettings settings;
};

// Checks the options against q [B, Hq, Lq, D] and the keys' shape [B, Hkv, Lk, D], and puts the
// call in canonical form.
AttentionCall canonical_call(std::string_view op, const mx::array& q, const mx::array& k,
                             const mx::array& v, double scale, const AttentionOptions& options,
                             mx::Stream s);

// That the canonical inputs fit each other, for output_shapes: mx.compile(shapeless=True) runs a
// traced graph on other shapes, past the op function and its checks.
void check_canonical(std::string_view op, const std::vector<mx::array>& inputs,
                     const AttentionSettings& settings);

// The same but for the last axes of k and v, which may be packed.
void check_canonical_lengths(std::string_view op, const std::vector<mx::array>& inputs,
                             const AttentionSettings& settings);

// Why no kernel of a backend covers such a call, in words; empty where one does.
std::string unsupported_attention(std::string_view backend, mx::Dtype dtype, int d, int d_v);

}  // namespace mto
