#pragma once

#include <deque>

#include "cpu/strided.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_schedule.h"

namespace mto {

// The arrays of a call, as the kernels' operands once load() has run in the task. Stays where it
// is: operands are bound by address.
class AttentionOperands {
 public:
  AttentionOperands(mx::Shape batch, mx::Stream stream)
      : batch_(std::move(batch)), stream_(stream) {}

  // `axes` names the array's own axes: h, i and j are head, row and column.
  void bind(AttentionOperand& operand, const mx::array& a, std::string_view axes);
  // The same of words that kernels read byte by byte.
  void bind_bytes(AttentionOperand& operand, const mx::array& a, std::string_view axes);
  void load();

 private:
  struct Binding {
    Strided array;
    AttentionOperand* operand;
    std::string_view axes;
  };

  mx::Shape batch_;
  mx::Stream stream_;
  std::deque<Binding> bindings_;
};

// cu_seqlens of queries and keys, and what they make of each row.
class AttentionDocuments {
 public:
  AttentionDocuments(const std::vector<mx::array>& inputs, const AttentionSettings& settings,
                     mx::Stream stream);

  // False where the lengths are no list of documents.
  bool load();
  const RowKeys* rows() const { return rows_; }

 private:
  int n_q_, n_k_, n_documents_ = 0;
  int32_t left_, right_;
  RowKeys* rows_;
  std::optional<Strided> q_, k_;
};

// One evaluation: bound when the primitive is evaluated, run in the task on the stream. Inputs are
// in the order of the dense primitive's; codes, which are uint32, stand for packed keys and values
// there, and bind_packed() has to follow.
class AttentionLaunch {
 public:
  AttentionLaunch(std::string_view op, const std::vector<mx::array>& inputs,
                  const AttentionSettings& settings, const mx::Shape& batch,
                  std::vector<mx::array>& outputs, mx::Stream stream);

  void bind_packed(AttentionPacked& packed, const mx::array& codes, const mx::array& scales,
                   const mx::array& biases, int group_size, int bits);
  // The same in another mode than "affine", by name, whose scales are an array of their own.
  void bind_coded(AttentionPacked& packed, const mx::array& codes, const mx::array& scales,
                  std::string_view mode, int group_size, int bits);
  void bind_mask_grad(mx::array& d_mask, const mx::Shape& batch);
  void take_workspace(int64_t n_floats);

  // In the task. Where the documents are none, load() makes every output NaN, and returns false.
  bool load();
  void forward();
  void backward();

  AttentionOperands operands;
  AttentionGradParams params{};

 private:
  struct Coded {
    PackedMatrix matrix;
    Levels levels;
  };

  struct Output {
    FloatType type;
    void* data;
    int64_t size;
  };

  void bind_forward(const std::vector<mx::array>& inputs, const AttentionSettings& settings,
                    const mx::Shape& batch);

  mx::Stream stream_;
  AttentionDocuments documents_;
  std::deque<Coded> coded_;
  std::vector<Output> outputs_;
  float* workspace_ = nullptr;
  std::vector<int64_t> mask_offsets_;  // of d_mask, one a batch element
  AttentionGradMask mask_;
};

}  // namespace mto
