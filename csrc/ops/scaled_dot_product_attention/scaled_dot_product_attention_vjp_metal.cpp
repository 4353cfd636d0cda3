#include "common/counters.h"
#include "common/integers.h"
#include "metal/instance.h"
#include "metal/strided.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_metal_binding.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_vjp_metal_variant.h"

namespace mto {
namespace {

constexpr int64_t kThreads = 32;  // of a simdgroup
constexpr uint32_t bit(int buffer) { return uint32_t{1} << buffer; }
// What the kernel of rows has bound, and what it alone has.
constexpr uint32_t kOnlyOfRows = bit(kAttentionOut) | bit(kAttentionDLse);
constexpr uint32_t kOfRows = kOnlyOfRows | bit(kAttentionDOut);
const std::string kRowsSource = "scaled_dot_product_attention_vjp_rows";

// Kernels of one evaluation.
class Backward {
 public:
  Backward(metal::Encoder& encoder, const std::vector<mx::array>& inputs,
           const AttentionSettings& settings, const mx::Shape& batch)
      : encoder_(encoder),
        binding_(encoder, inputs, settings, batch),
        p_(binding_.params),
        batch_(batch),
        type_(inputs[0].dtype()),
        // It concerns products of float32 alone, yet MLX's kernels, which ship for M5, set it
        // always.
        relaxed_(settings.tf32 || type_ != mx::float32),
        constants_(temporary({p_.n_batch, p_.n_heads, p_.n_q})) {
    int n = settings.n_inputs();
    binding_.add(kAttentionOut, inputs[n], "hij");
    binding_.add(kAttentionLse, inputs[n + 1], "hi");
    binding_.add_matrices(kAttentionDOut, inputs[n + 2]);
    binding_.add(kAttentionDLse, inputs[n + 3], "hi");
  }

  void rows() {
    if (constants_.size() == 0) return;
    binding_.pipeline({kRowsSource, metal::instance("attention_grad_rows", type_), {}}, kOfRows);
    encoder_.output(constants_, kGradConstants);
    encoder_.dispatch({ceil_div(p_.n_q, kGradRowSimdgroups), p_.n_heads, p_.n_batch},
                      {kGradRowSimdgroups * kThreads});
  }

  // d_alibi may be null.
  void by_queries(mx::array& d_q, mx::array* d_alibi) {
    auto variant = attention_grad_variant(true, p_.n_k, p_.d, p_.d_v);
    int n_heads = p_.n_batch * p_.n_heads;
    int n_parts = ceil_div(p_.n_q, int{kGradRows}) * (variant.together ? variant.simdgroups : 1);
    auto parts = temporary({d_alibi ? n_heads : 0, n_parts});
    if (constants_.size() > 0) {
      set(variant, true, d_q.dtype(), d_alibi != nullptr);
      encoder_.output(d_q, kGradFirst);
      if (d_alibi) encoder_.output(parts, kGradAlibi);
      dispatch(variant, p_.n_q, p_.n_heads);
    }
    if (!d_alibi || n_heads == 0) return;
    constexpr int kSimdgroups = kGradRowSimdgroups;
    encoder_.pipeline({kRowsSource, metal::instance("attention_alibi_grad", kSimdgroups), {}});
    encoder_.input(parts, 0);
    encoder_.output(*d_alibi, 1);
    encoder_.value(n_heads, 2);
    encoder_.value(n_parts, 3);
    encoder_.dispatch({ceil_div(n_heads, kSimdgroups)}, {kSimdgroups * kThreads});
  }

  void by_keys(mx::array& d_k, mx::array& d_v) {
    if (d_k.size() == 0 && d_v.size() == 0) return;
    auto variant = attention_grad_variant(false, p_.n_q, p_.d, p_.d_v);
    set(variant, false, d_k.dtype(), false);
    encoder_.output(d_k, kGradFirst);
    encoder_.output(d_v, kGradValues);
    dispatch(variant, p_.n_k, p_.n_kv_heads);
  }

  void by_mask(mx::array& d_mask) {
    if (d_mask.size() == 0) return;
    AttentionMaskGradParams own{d_mask.shape(-3), d_mask.shape(-2), d_mask.shape(-1), 0, 0, 1};
    auto strides = metal::batch_strides(d_mask, batch_, 3);
    std::vector<int64_t> own_dims, shared_dims;
    int64_t n_own = 1, flat = 1;
    for (size_t dim = batch_.size(); dim-- > 0; flat *= batch_[dim]) {
      if (batch_[dim] == 1) continue;
      bool has = strides[dim] != 0;
      auto& dims = has ? own_dims : shared_dims;
      dims.insert(dims.begin(), {batch_[dim], flat});
      (has ? own.n_own_dims : own.n_shared_dims) += 1;
      if (has) {
        n_own *= batch_[dim];
      } else {
        own.n_shared *= batch_[dim];
      }
    }
    own_dims.insert(own_dims.end(), shared_dims.begin(), shared_dims.end());
    if (own_dims.empty()) own_dims.resize(1);  // there has to be something to bind
    binding_.pipeline({"scaled_dot_product_attention_vjp_mask",
                       metal::instance("attention_mask_grad", type_, relaxed_),
                       {}},
                      ~kOnlyOfRows);
    encoder_.input(constants_, kGradConstants);
    encoder_.output(d_mask, kGradMask);
    encoder_.value(own, kGradMaskParams);
    encoder_.bytes(own_dims.data(), own_dims.size() * sizeof(int64_t), kGradMaskBatch);
    int64_t tiles = own.n_q == 1 ? 1 : ceil_div(own.n_q, int32_t{kGradRows});
    int64_t key_tiles = own.n_k == 1 ? 1 : ceil_div(own.n_k, int32_t{kGradMaskKeys});
    encoder_.dispatch({key_tiles, tiles, n_own * own.n_heads}, {kGradMaskSimdgroups * kThreads});
  }

 private:
  mx::array temporary(mx::Shape shape) {
    mx::array a(std::move(shape), mx::float32, nullptr, {});
    encoder_.allocate(a);
    encoder_.keep(a);
    return a;
  }

  void set(const AttentionGradVariant& v, bool queries, mx::Dtype grad_type, bool wants_alibi) {
    binding_.pipeline({"scaled_dot_product_attention_vjp",
                       metal::instance("attention_grad", type_, grad_type, queries, v.n_first,
                                       v.n_values, v.cols, v.simdgroups, v.together, relaxed_),
                       {{kGradWantsAlibi, wants_alibi}, {kGradWantsValues, !queries}}},
                      ~kOnlyOfRows);
    encoder_.input(constants_, kGradConstants);
  }

  void dispatch(const AttentionGradVariant& v, int n_rows, int n_heads) {
    int64_t tiles = ceil_div(n_rows, int{kGradRows});
    if (!v.together) tiles = ceil_div(tiles, int64_t{v.simdgroups});
    encoder_.dispatch({tiles, n_heads, p_.n_batch}, {v.simdgroups * kThreads});
  }

  metal::Encoder& encoder_;
  AttentionMetalBinding binding_;
  const ScaledDotProductAttentionMetalParams& p_;
  mx::Shape batch_;
  mx::Dtype type_;
  bool relaxed_;
  mx::array constants_;
};

}  // namespace

void ScaledDotProductAttentionVJP::eval_gpu(const std::vector<mx::array>& inputs,
                                            std::vector<mx::array>& outputs) {
  eval_metal(*metal::gpu_encoder(stream()), inputs, outputs);
}

void ScaledDotProductAttentionVJP::eval_metal(metal::Encoder& encoder,
                                              const std::vector<mx::array>& inputs,
                                              std::vector<mx::array>& outputs) {
  count("scaled_dot_product_attention_vjp", "metal", "fused");
  for (auto& out : outputs) encoder.allocate(out);
  Backward backward(encoder, inputs, settings_, attention_batch(inputs, settings_));
  backward.rows();
  backward.by_queries(outputs[0], wants_alibi_ ? &outputs.back() : nullptr);
  backward.by_keys(outputs[1], outputs[2]);
  if (wants_mask_) backward.by_mask(outputs[3]);
}

}  // namespace mto
