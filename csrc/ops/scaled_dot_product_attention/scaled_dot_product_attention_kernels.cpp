// Tiles of rows against tiles of keys: see the headers of the two passes. All sums are float32, and
// go over the keys in ascending order, whatever rows a row shares a tile with.

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_kernels.h"

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_backward.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_forward.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_grad_products.h"
#if defined(MTO_ISA_avx512)
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_bf16_grad_products.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_bf16_products.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_int8_products.h"
#endif

namespace mto::MTO_ISA {
namespace {

static_assert(kTile == kAttentionTile && kMaxAttentionRows % kRows == 0);

// Calls f with the products that suit the call: of the forward pass, and of gradients.
template <typename F>
void with_products([[maybe_unused]] const AttentionParams& p, F&& f) {
#if defined(MTO_ISA_avx512)
  bool packed = static_cast<bool>(p.k_packed.codes);
  bool affine = packed && !p.k_packed.decode && !p.v_packed.decode;
  if (affine && p.type != FloatType::kFloat32 && has_int8_tiles()) {
    return f.template operator()<Int8Products, FloatGradProducts>();
  }
  if (!packed && p.type == FloatType::kBFloat16 && has_bf16_tiles()) {
    return f.template operator()<Bf16Products, Bf16GradProducts>();
  }
#endif
  f.template operator()<FloatProducts, FloatGradProducts>();
}

void forward(const AttentionParams& p, int64_t b, int64_t kv_head, AttentionRange rows) {
  with_products(p, [&]<typename Products, typename>() {
    Forward<Products> pass(p, b, kv_head, rows);
    pass.run(0, (p.n_k + kTile - 1) / kTile);
    pass.finish();
  });
}

void forward_tile(const AttentionParams& p, int64_t b, int64_t kv_head, AttentionRange rows,
                  int64_t tile, float* sums) {
  with_products(p, [&]<typename Products, typename>() {
    Forward<Products>(p, b, kv_head, rows, sums).run(tile, tile + 1);
  });
}

void backward(const AttentionGradParams& g, const float* constants, int64_t b, int64_t kv_head,
              AttentionRange tiles, AttentionQueryGrads d_q, float* d_alibi) {
  const auto& p = g.forward;
  int64_t group = p.group();
  std::fill_n(d_q.touched, (group * p.n_q + kAttentionGradRows - 1) / kAttentionGradRows, 0);
  with_products(p, [&]<typename, typename Products>() {
    Backward<Products> pass(g, constants, b, kv_head, d_q);
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
      pass.run(tile, d_alibi + tile * group);
    }
  });
}

void grad_of_mask(const AttentionGradParams& g, const float* constants, int64_t b, int64_t h,
                  AttentionRange rows, AttentionRange keys) {
  with_products(g.forward, [&]<typename, typename Products>() {
    mask_grad<Products>(g, constants, b, h, rows, keys);
  });
}

}  // namespace

extern const ScaledDotProductAttentionKernels scaled_dot_product_attention_kernels;
const ScaledDotProductAttentionKernels scaled_dot_product_attention_kernels{
    forward, forward_tile, merge_parts, grad_constants, backward, write_d_q, grad_of_mask};

}  // namespace mto::MTO_ISA
