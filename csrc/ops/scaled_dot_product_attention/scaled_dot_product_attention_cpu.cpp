#include <mlx/backend/cpu/encoder.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <limits>
#include <memory>

#include "common/counters.h"
#include "cpu/matrices.h"
#include "cpu/strided.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_schedule.h"

namespace mto {
namespace {

using enum AttentionInput;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t size_of_shape(const mx::Shape& shape) {
  int64_t size = 1;
  for (int n : shape) size *= n;
  return size;
}

// The arrays of a call, as the kernels' operands once load() has run in the task. Stays where it
// is: operands are bound by address.
class Operands {
 public:
  Operands(mx::Shape batch, mx::Stream stream) : batch_(std::move(batch)), stream_(stream) {}

  // `axes` names the array's own axes: h, i and j are head, row and column.
  void bind(AttentionOperand& operand, const mx::array& a, std::string_view axes) {
    operand.type = float_type(a.dtype()).value_or(FloatType::kFloat32);
    bindings_.push_back(
        {Strided(a, batch_, static_cast<int>(axes.size()), stream_), &operand, axes});
  }

  void load() {
    for (auto& [array, operand, axes] : bindings_) {
      array.load();
      operand->data = array.data();
      operand->batch = array.batch();
      for (size_t i = 0; i < axes.size(); ++i) {
        auto& stride = axes[i] == 'h'   ? operand->head
                       : axes[i] == 'i' ? operand->row
                                        : operand->column;
        stride = array.stride(static_cast<int>(i));
      }
    }
  }

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
class Documents {
 public:
  Documents(const std::vector<mx::array>& inputs, const AttentionSettings& settings,
            mx::Stream stream)
      : n_q_(inputs[0].shape(-2)),
        n_k_(inputs[1].shape(-2)),
        left_(settings.window_left),
        right_(settings.window_right) {
    rows_ = reinterpret_cast<RowKeys*>(
        temporary({std::max(n_q_, 1), 3}, mx::int32, stream).data<int32_t>());
    if (!settings.has(kQDocuments)) return;
    q_.emplace(inputs[settings.at(kQDocuments)], mx::Shape{}, 1, stream);
    k_.emplace(inputs[settings.at(kKDocuments)], mx::Shape{}, 1, stream);
    n_documents_ = inputs[settings.at(kQDocuments)].shape(0) - 1;
  }

  // False where the lengths are no list of documents.
  bool load() {
    if (!q_) {
      for (int i = 0; i < n_q_; ++i) rows_[i] = row_keys(i, {n_q_, 0, n_k_}, left_, right_);
      return true;
    }
    q_->load();
    k_->load();
    if (!valid(*q_, n_q_) || !valid(*k_, n_k_)) return false;
    for (int i = 0; i < n_q_; ++i) rows_[i] = no_keys(i);
    for (int document = 0; document < n_documents_; ++document) {
      int end = at(*q_, document + 1);
      Document keys{end, at(*k_, document), at(*k_, document + 1)};
      for (int i = at(*q_, document); i < end; ++i) rows_[i] = row_keys(i, keys, left_, right_);
    }
    return true;
  }

  const RowKeys* rows() const { return rows_; }

 private:
  static int at(const Strided& lengths, int i) {
    return static_cast<const int32_t*>(lengths.data())[i * lengths.stride(0)];
  }

  bool valid(const Strided& lengths, int n) const {
    int before = 0;
    for (int i = 0; i <= n_documents_; ++i) {
      int end = at(lengths, i);
      if (end < before || end > n) return false;
      before = end;
    }
    return true;
  }

  int n_q_, n_k_, n_documents_ = 0;
  int32_t left_, right_;
  RowKeys* rows_;
  std::optional<Strided> q_, k_;
};

void bind_forward(Operands& operands, AttentionParams& params, const std::vector<mx::array>& inputs,
                  const AttentionSettings& settings, const mx::Shape& batch) {
  const auto &q = inputs[0], &k = inputs[1], &v = inputs[2];
  params.n_batch = size_of_shape(batch);
  params.n_heads = q.shape(-3);
  params.n_kv_heads = k.shape(-3);
  params.n_q = q.shape(-2);
  params.n_k = k.shape(-2);
  params.d = q.shape(-1);
  params.d_v = v.shape(-1);
  params.type = *float_type(q.dtype());
  params.scale = settings.scale;
  params.softcap = settings.softcap;
  params.block_rows = settings.block_rows;
  params.block_keys = settings.block_keys;
  operands.bind(params.q, q, "hij");
  operands.bind(params.k, k, "hij");
  operands.bind(params.v, v, "hij");
  auto bind = [&](AttentionInput input, AttentionOperand& operand, std::string_view axes) {
    if (settings.has(input)) operands.bind(operand, inputs[settings.at(input)], axes);
  };
  if (settings.has(kMask)) {
    bool additive = inputs[settings.at(kMask)].dtype() != mx::bool_;
    params.mask_kind = additive ? MaskKind::kAdditive : MaskKind::kBool;
  }
  bind(kMask, params.mask, "hij");
  bind(kAlibi, params.alibi, "h");
  bind(kSinks, params.sinks, "h");
  bind(kQSegments, params.q_segments, "i");
  bind(kKSegments, params.k_segments, "i");
  bind(kBlockMask, params.block_mask, "hij");
}

void fill_nan(FloatType type, void* data, int64_t n) {
  if (type == FloatType::kFloat32) {
    std::fill_n(static_cast<float*>(data), n, std::numeric_limits<float>::quiet_NaN());
  } else {
    uint16_t nan = type == FloatType::kFloat16 ? 0x7e00 : 0x7fc0;
    std::fill_n(static_cast<uint16_t*>(data), n, nan);
  }
}

// MLX_TENSOROPS_CHECK=1: values that make a result NaN are errors instead, at the price of waiting.
void check_documents(const std::vector<mx::array>& inputs, const AttentionSettings& settings,
                     mx::Stream stream) {
  const char* check = std::getenv("MLX_TENSOROPS_CHECK");
  if (!settings.has(kQDocuments) || !check || std::string_view(check) != "1") return;
  mx::synchronize(stream);
  for (auto [position, length] : {std::pair{settings.at(kQDocuments), inputs[0].shape(-2)},
                                  {settings.at(kKDocuments), inputs[1].shape(-2)}}) {
    const auto& lengths = inputs[position];
    int before = 0;
    for (int i = 0; i < lengths.shape(0); ++i) {
      int end = lengths.data<int32_t>()[i * lengths.strides(0)];
      if (end < before || end > length) {
        fail("scaled_dot_product_attention", "cu_seqlens",
             "rise from 0 or more to at most " + std::to_string(length),
             std::to_string(end) + " at position " + std::to_string(i));
      }
      before = end;
    }
  }
}

struct Output {
  FloatType type;
  void* data;
  int64_t size;
};

std::vector<Output> allocated(std::vector<mx::array>& outputs) {
  std::vector<Output> all;
  for (auto& out : outputs) {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    all.push_back({*float_type(out.dtype()), out.data<void>(), static_cast<int64_t>(out.size())});
  }
  return all;
}

// What forward and backward have in common: operands, and NaN for bad documents.
class Launch {
 public:
  Launch(const std::vector<mx::array>& inputs, const AttentionSettings& settings, mx::Shape batch,
         std::vector<mx::array>& outputs, mx::Stream stream)
      : operands(batch, stream), documents(inputs, settings, stream), outputs(allocated(outputs)) {
    bind_forward(operands, params.forward, inputs, settings, batch);
  }

  void bind_mask_grad(mx::array& d_mask, const mx::Shape& batch) {
    const auto& shape = d_mask.shape();
    auto strides = contiguous_strides(shape);
    mask_offsets = batch_offsets(shape, strides, batch, 3);
    auto stride = [&](int axis) { return shape.end()[axis] == 1 ? 0 : strides.end()[axis]; };
    params.d_mask = {d_mask.data<float>(), mask_offsets.data(), stride(-3),
                     stride(-2),           stride(-1),          FloatType::kFloat32};
    mask = {shape.end()[-3], shape.end()[-2], shape.end()[-1], {}};
    for (size_t b = 0; b < mask_offsets.size(); ++b) {
      auto end = mask_offsets.begin() + b;
      if (std::find(mask_offsets.begin(), end, mask_offsets[b]) == end) mask.batches.push_back(b);
    }
  }

  bool load() {
    operands.load();
    params.forward.rows = documents.rows();
    if (documents.load()) return true;
    for (auto [type, data, size] : outputs) fill_nan(type, data, size);
    return false;
  }

  void take_workspace(int64_t n_floats, mx::Stream stream) {
    // Of rows, as an axis has no more than 2^31 - 1 elements.
    constexpr int64_t kRow = 1024;
    mx::Shape shape{static_cast<int>(ceil_div(n_floats, kRow)), kRow};
    if (n_floats > 0) workspace = temporary(shape, mx::float32, stream).data<float>();
  }

  void forward() {
    auto& p = params.forward;
    p.out = outputs[0].data;
    p.lse = static_cast<float*>(outputs[1].data);
    attention_forward(p, workspace);
  }

  void backward() {
    auto& p = params.forward;
    params.d_q = outputs[0].data;
    params.d_k = outputs[1].data;
    params.d_v = outputs[2].data;
    if (params.d_mask && mask.batches.empty()) {
      std::fill_n(static_cast<float*>(outputs[3].data), outputs[3].size, 0.0f);
    }
    attention_backward(params, mask, workspace);
  }

  Operands operands;
  Documents documents;
  std::vector<Output> outputs;
  AttentionGradParams params{};
  float* workspace = nullptr;
  std::vector<int64_t> mask_offsets;  // of d_mask, one a batch element
  AttentionGradMask mask;
};

}  // namespace

void ScaledDotProductAttention::eval_cpu(const std::vector<mx::array>& inputs,
                                         std::vector<mx::array>& outputs) {
  check_documents(inputs, settings_, stream());
  count("scaled_dot_product_attention", "cpu", "fused");
  auto launch = std::make_shared<Launch>(inputs, settings_, attention_batch(inputs, settings_),
                                         outputs, stream());
  launch->take_workspace(attention_workspace(launch->params.forward), stream());
  mx::cpu::get_command_encoder(stream()).dispatch([launch] {
    if (launch->load()) launch->forward();
  });
}

void ScaledDotProductAttentionVJP::eval_cpu(const std::vector<mx::array>& inputs,
                                            std::vector<mx::array>& outputs) {
  check_documents(inputs, settings_, stream());
  count("scaled_dot_product_attention_vjp", "cpu", "fused");
  auto batch = attention_batch(inputs, settings_);
  auto launch = std::make_shared<Launch>(inputs, settings_, batch, outputs, stream());
  auto& params = launch->params;
  int n = settings_.n_inputs();
  launch->operands.bind(params.out, inputs[n], "hij");
  launch->operands.bind(params.lse, inputs[n + 1], "hi");
  launch->operands.bind(params.d_out, inputs[n + 2], "hij");
  launch->operands.bind(params.d_lse, inputs[n + 3], "hi");
  params.grad_type = *float_type(outputs[0].dtype());
  if (wants_alibi_) params.d_alibi = outputs.back().data<float>();
  if (wants_mask_) launch->bind_mask_grad(outputs[3], batch);
  launch->take_workspace(attention_grad_workspace(params), stream());
  mx::cpu::get_command_encoder(stream()).dispatch([launch] {
    if (launch->load()) launch->backward();
  });
}

void ScaledDotProductAttention::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error("[scaled_dot_product_attention] has no kernel for a GPU.");
}

void ScaledDotProductAttentionVJP::eval_gpu(const std::vector<mx::array>&,
                                            std::vector<mx::array>&) {
  throw std::runtime_error("[scaled_dot_product_attention] has no kernel for a GPU.");
}

}  // namespace mto
