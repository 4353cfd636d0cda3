#pragma once

#include <variant>

#include "common/check.h"
#include "metal/encoder.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_tiles.h"

namespace mto {

using Mask = std::variant<std::string, mx::array>;
using Window = std::variant<int64_t, std::pair<std::optional<int64_t>, std::optional<int64_t>>>;
// One array for queries and keys, or one for each.
using ForEach = std::variant<mx::array, std::pair<mx::array, mx::array>>;

// The options of a call, as they come from Python.
struct AttentionOptions {
  std::optional<Mask> mask;
  std::optional<mx::array> sinks;
  std::optional<Window> window;
  std::optional<double> softcap;
  std::optional<mx::array> alibi;
  std::optional<ForEach> segment_ids;
  std::optional<ForEach> cu_seqlens;
  std::optional<mx::array> block_mask;
  std::optional<std::pair<int64_t, int64_t>> block_size;
  bool return_lse = false;
  std::optional<std::string> precision;
  std::optional<std::string> route;
  bool force_fused = false;
};

// The output, and the logsumexp of each row (asked for by return_lse, else an unused array).
std::pair<mx::array, mx::array> scaled_dot_product_attention(const mx::array& q, const mx::array& k,
                                                             const mx::array& v, double scale,
                                                             const AttentionOptions& options,
                                                             mx::StreamOrDevice s);

// Inputs behind q, k and v, in this order, as far as a call has them.
enum class AttentionInput : int {
  kMask,        // [.., 1 or Hq, 1 or Lq, 1 or Lk], bool or additive
  kAlibi,       // float32 [.., Hq]
  kSinks,       // float32 [.., Hq]
  kQSegments,   // int32 [.., Lq]
  kKSegments,   // int32 [.., Lk]
  kQDocuments,  // int32 [n + 1]
  kKDocuments,  // int32 [n + 1]
  kBlockMask,   // bool [.., 1 or Hq, 1 or blocks, 1 or blocks]
};

// What a primitive knows of its call, beside the inputs. "causal" is window_right == 0.
struct AttentionSettings {
  float scale = 1;
  float softcap = 0;  // 0: none
  int32_t window_left = kNoLimit, window_right = kNoLimit;
  int32_t block_rows = 1, block_keys = 1;
  bool tf32 = false;
  uint32_t present = 0;  // a bit an AttentionInput

  bool has(AttentionInput input) const { return present >> static_cast<int>(input) & 1; }
  // The position of an input that is present, among all inputs.
  int at(AttentionInput input) const;
  int n_inputs() const;
  bool operator==(const AttentionSettings&) const = default;
};

// The leading dimensions of all inputs, broadcast.
mx::Shape attention_batch(const std::vector<mx::array>& inputs, const AttentionSettings& settings);

// The inputs of a vmapped primitive with the mapped axis first; the others broadcast.
std::vector<mx::array> with_mapped_attention_axis(const std::vector<mx::array>& inputs,
                                                  const std::vector<int>& axes,
                                                  const AttentionSettings& settings, mx::Stream s);

// Outputs out [.., Hq, Lq, Dv] and lse [.., Hq, Lq]. q, k and v have one dtype; leading dimensions
// of all inputs broadcast, but for documents, which have none.
class ScaledDotProductAttention : public mx::Primitive, public metal::MetalPrimitive {
 public:
  ScaledDotProductAttention(mx::Stream stream, AttentionSettings settings)
      : mx::Primitive(stream), settings_(settings) {}

  std::vector<mx::array> apply(const std::vector<mx::array>& inputs);

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_metal(metal::Encoder& encoder, const std::vector<mx::array>& inputs,
                  std::vector<mx::array>& outputs) override;
  std::shared_ptr<mx::Primitive> on(mx::Stream stream) const override;
  std::vector<metal::TrialShapes> trial_shapes(const std::vector<mx::array>& inputs,
                                               metal::TrialSize size) const override;
  std::vector<mx::array> trial_inputs(const metal::TrialShapes& shapes,
                                      const std::vector<mx::array>& inputs) const override;
  std::vector<mx::array> jvp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& tangents,
                             const std::vector<int>& argnums) override;
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums,
                             const std::vector<mx::array>& outputs) override;
  std::pair<std::vector<mx::array>, std::vector<int>> vmap(const std::vector<mx::array>& inputs,
                                                           const std::vector<int>& axes) override;
  const char* name() const override { return "mlx_tensorops::ScaledDotProductAttention"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  mx::array sinks_grad(const std::vector<mx::array>& primals, const mx::array& d_out,
                       const mx::array& d_lse, const std::vector<mx::array>& outputs);

  AttentionSettings settings_;
};

// Inputs: those of the forward pass, its outputs, and the cotangents of these. Outputs d_q, d_k and
// d_v for the broadcast batch; then, where wanted, d_mask (float32, of the mask's shape) and
// d_alibi (float32, for the broadcast batch).
class ScaledDotProductAttentionVJP : public mx::Primitive, public metal::MetalPrimitive {
 public:
  ScaledDotProductAttentionVJP(mx::Stream stream, AttentionSettings settings, bool wants_mask,
                               bool wants_alibi)
      : mx::Primitive(stream),
        settings_(settings),
        wants_mask_(wants_mask),
        wants_alibi_(wants_alibi) {}

  std::vector<mx::array> apply(const std::vector<mx::array>& inputs);
  // The same gradients by MLX's ops, differentiable to any order.
  std::vector<mx::array> graph(const std::vector<mx::array>& inputs);

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
  void eval_metal(metal::Encoder& encoder, const std::vector<mx::array>& inputs,
                  std::vector<mx::array>& outputs) override;
  std::shared_ptr<mx::Primitive> on(mx::Stream stream) const override;
  std::vector<metal::TrialShapes> trial_shapes(const std::vector<mx::array>& inputs,
                                               metal::TrialSize size) const override;
  std::vector<mx::array> trial_inputs(const metal::TrialShapes& shapes,
                                      const std::vector<mx::array>& inputs) const override;
  std::vector<mx::array> jvp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& tangents,
                             const std::vector<int>& argnums) override;
  std::vector<mx::array> vjp(const std::vector<mx::array>& primals,
                             const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums,
                             const std::vector<mx::array>& outputs) override;
  std::pair<std::vector<mx::array>, std::vector<int>> vmap(const std::vector<mx::array>& inputs,
                                                           const std::vector<int>& axes) override;
  const char* name() const override { return "mlx_tensorops::ScaledDotProductAttentionVJP"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  mx::Dtype grad_dtype(const std::vector<mx::array>& inputs) const;

  AttentionSettings settings_;
  bool wants_mask_;
  bool wants_alibi_;
};

}  // namespace mto
