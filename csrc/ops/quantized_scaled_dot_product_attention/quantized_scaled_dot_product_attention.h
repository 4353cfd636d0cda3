#pragma once

#include <array>

#include "metal/encoder.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention.h"

namespace mto {

// Keys or values as quantize() returns them, and how. Groups run along the last axis.
struct QuantizedOperand {
  std::vector<mx::array> arrays;  // packed codes, scales, and biases where the mode has them
  std::optional<int> group_size, bits;
  std::string mode;
};

// The output in q's dtype, and the logsumexp of each row.
std::pair<mx::array, mx::array> quantized_scaled_dot_product_attention(
    const mx::array& q, const QuantizedOperand& k, const QuantizedOperand& v, double scale,
    const AttentionOptions& options, mx::StreamOrDevice s);

// Modes without biases have the scales in their place among a primitive's inputs.
struct PackedFormat {
  int group_size, bits;
  std::string mode = "affine";

  bool affine() const { return mode == "affine"; }
  bool operator==(const PackedFormat&) const = default;
};

// Outputs out, in q's dtype, and lse. Inputs are q; codes, scales and biases of the keys, then of
// the values; then the options as the dense primitive has them. Leading dimensions of all
// broadcast.
class QuantizedScaledDotProductAttention : public mx::Primitive, public metal::MetalPrimitive {
 public:
  QuantizedScaledDotProductAttention(mx::Stream stream, AttentionSettings settings,
                                     PackedFormat keys, PackedFormat values)
      : mx::Primitive(stream), settings_(settings), formats_{keys, values} {}

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
  const char* name() const override { return "mlx_tensorops::QuantizedScaledDotProductAttention"; }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

 private:
  static constexpr int kParts = 3;  // codes, scales and biases
  static constexpr int kFirstOption = 1 + 2 * kParts;

  // The inputs in the dense primitive's order, with one of a packed operand's three arrays for it.
  std::vector<mx::array> with_part(const std::vector<mx::array>& inputs, int part) const;
  mx::Shape batch(const std::vector<mx::array>& inputs) const;
  // Decoded to memory: what derivatives are taken through.
  std::vector<mx::array> decoded(const std::vector<mx::array>& inputs);

  AttentionSettings settings_;
  std::array<PackedFormat, 2> formats_;
};

}  // namespace mto
