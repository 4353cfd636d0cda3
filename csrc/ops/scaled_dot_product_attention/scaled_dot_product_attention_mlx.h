#pragma once

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_checks.h"

// Calls that mx.fast.scaled_dot_product_attention covers.

namespace mto {

// Whether MLX's op takes the call with the same meaning, but for rows without keys.
bool mlx_takes_attention(const AttentionCall& call, const AttentionOptions& options);

// Whether on a Mac's GPU, inference, it has a kernel for a call that it takes, and does not compose
// it of others.
bool mlx_fuses_attention(const AttentionCall& call);

mx::array mlx_attention(const AttentionCall& call, const AttentionOptions& options, mx::Stream s);

}  // namespace mto
