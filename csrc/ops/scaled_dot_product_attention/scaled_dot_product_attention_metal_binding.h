#pragma once

// What every Metal kernel of attention has bound alike.

#include "metal/encoder.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_metal_params.h"

namespace mto {

// Operands, options, and the rows that documents make; for one evaluation. Arrays are bound where
// they lie, but for those that a tensor operation could not read there.
class AttentionMetalBinding {
 public:
  // Inputs are in the order of the dense primitive's. Codes, which are uint32, stand for packed
  // keys and values there: then params.d_v is left to the caller. Dispatches the kernel that makes
  // rows of documents.
  AttentionMetalBinding(metal::Encoder& encoder, const std::vector<mx::array>& inputs,
                        const AttentionSettings& settings, const mx::Shape& batch);

  // `axes` names the array's own axes: h, i and j are head, row and column.
  void add(AttentionMetalOperand operand, const mx::array& a, std::string_view axes);
  // The same of an operand of tensor operations: a copy where its last axis is not dense, or rows
  // do not ascend.
  void add_matrices(AttentionMetalOperand operand, const mx::array& a);

  // Sets the pipeline, with the options among its constants, and binds all operands, params, and
  // the table of batches. Outputs and a kernel's own buffers are bound by the caller. A kernel may
  // lack some of the buffers: `has` has a bit an index.
  void pipeline(metal::Kernel kernel, uint32_t has = ~uint32_t{0});

  ScaledDotProductAttentionMetalParams params{};

 private:
  struct Bound {
    mx::array array;
    int64_t begin, end;
    int index;
  };

  void add_option(AttentionMetalOperand operand, AttentionInput input, std::string_view axes);
  void make_rows();

  metal::Encoder& encoder_;
  const std::vector<mx::array>& inputs_;
  const AttentionSettings& settings_;
  mx::Shape batch_;
  std::vector<Bound> bound_;
  std::vector<std::vector<int64_t>> strides_;  // of each operand, along the batch
  std::optional<mx::array> rows_;
};

}  // namespace mto
