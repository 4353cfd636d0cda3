#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_launch.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "common/integers.h"
#include "cpu/matrices.h"
#include "formats/format_kernels.h"

namespace mto {
namespace {

using enum AttentionInput;

int64_t size_of_shape(const mx::Shape& shape) {
  int64_t size = 1;
  for (int n : shape) size *= n;
  return size;
}

int length_at(const Strided& lengths, int i) {
  return static_cast<const int32_t*>(lengths.data())[i * lengths.stride(0)];
}

bool is_list_of_documents(const Strided& lengths, int n_documents, int n) {
  int before = 0;
  for (int i = 0; i <= n_documents; ++i) {
    int end = length_at(lengths, i);
    if (end < before || end > n) return false;
    before = end;
  }
  return true;
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
void check_documents(std::string_view op, const std::vector<mx::array>& inputs,
                     const AttentionSettings& settings, mx::Stream stream) {
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
        fail(op, "cu_seqlens", "rise from 0 or more to at most " + std::to_string(length),
             std::to_string(end) + " at position " + std::to_string(i));
      }
      before = end;
    }
  }
}

}  // namespace

void AttentionOperands::bind(AttentionOperand& operand, const mx::array& a, std::string_view axes) {
  operand.type = float_type(a.dtype()).value_or(FloatType::kFloat32);
  bindings_.push_back({Strided(a, batch_, static_cast<int>(axes.size()), stream_), &operand, axes});
}

void AttentionOperands::bind_bytes(AttentionOperand& operand, const mx::array& a,
                                   std::string_view axes) {
  bind(operand, a, axes);
  bindings_.back().array.in_bytes();
}

void AttentionOperands::load() {
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

AttentionDocuments::AttentionDocuments(const std::vector<mx::array>& inputs,
                                       const AttentionSettings& settings, mx::Stream stream)
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

bool AttentionDocuments::load() {
  if (!q_) {
    for (int i = 0; i < n_q_; ++i) rows_[i] = row_keys(i, {n_q_, 0, n_k_}, left_, right_);
    return true;
  }
  q_->load();
  k_->load();
  if (!is_list_of_documents(*q_, n_documents_, n_q_)) return false;
  if (!is_list_of_documents(*k_, n_documents_, n_k_)) return false;
  for (int i = 0; i < n_q_; ++i) rows_[i] = no_keys(i);
  for (int document = 0; document < n_documents_; ++document) {
    int end = length_at(*q_, document + 1);
    Document keys{end, length_at(*k_, document), length_at(*k_, document + 1)};
    for (int i = length_at(*q_, document); i < end; ++i) {
      rows_[i] = row_keys(i, keys, left_, right_);
    }
  }
  return true;
}

AttentionLaunch::AttentionLaunch(std::string_view op, const std::vector<mx::array>& inputs,
                                 const AttentionSettings& settings, const mx::Shape& batch,
                                 std::vector<mx::array>& outputs, mx::Stream stream)
    : operands(batch, stream), stream_(stream), documents_(inputs, settings, stream) {
  check_documents(op, inputs, settings, stream);
  for (auto& out : outputs) {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    outputs_.push_back(
        {*float_type(out.dtype()), out.data<void>(), static_cast<int64_t>(out.size())});
  }
  bind_forward(inputs, settings, batch);
}

void AttentionLaunch::bind_forward(const std::vector<mx::array>& inputs,
                                   const AttentionSettings& settings, const mx::Shape& batch) {
  const auto &q = inputs[0], &k = inputs[1], &v = inputs[2];
  auto& p = params.forward;
  p.n_batch = size_of_shape(batch);
  p.n_heads = q.shape(-3);
  p.n_kv_heads = k.shape(-3);
  p.n_q = q.shape(-2);
  p.n_k = k.shape(-2);
  p.d = q.shape(-1);
  p.type = *float_type(q.dtype());
  p.scale = settings.scale;
  p.softcap = settings.softcap;
  p.block_rows = settings.block_rows;
  p.block_keys = settings.block_keys;
  operands.bind(p.q, q, "hij");
  if (k.dtype() != mx::uint32) {
    p.d_v = v.shape(-1);
    operands.bind(p.k, k, "hij");
    operands.bind(p.v, v, "hij");
  }
  auto bind = [&](AttentionInput input, AttentionOperand& operand, std::string_view axes) {
    if (settings.has(input)) operands.bind(operand, inputs[settings.at(input)], axes);
  };
  if (settings.has(kMask)) {
    bool additive = inputs[settings.at(kMask)].dtype() != mx::bool_;
    p.mask_kind = additive ? MaskKind::kAdditive : MaskKind::kBool;
  }
  bind(kMask, p.mask, "hij");
  bind(kAlibi, p.alibi, "h");
  bind(kSinks, p.sinks, "h");
  bind(kQSegments, p.q_segments, "i");
  bind(kKSegments, p.k_segments, "i");
  bind(kBlockMask, p.block_mask, "hij");
}

void AttentionLaunch::bind_packed(AttentionPacked& packed, const mx::array& codes,
                                  const mx::array& scales, const mx::array& biases, int group_size,
                                  int bits) {
  operands.bind_bytes(packed.codes, codes, "hij");
  operands.bind(packed.scales, scales, "hij");
  operands.bind(packed.biases, biases, "hij");
  packed.group_size = group_size;
  packed.bits = bits;
}

void AttentionLaunch::bind_coded(AttentionPacked& packed, const mx::array& codes,
                                 const mx::array& scales, std::string_view mode, int group_size,
                                 int bits) {
  operands.bind_bytes(packed.codes, codes, "hij");
  operands.bind(packed.scales, scales, "hij");
  packed.group_size = group_size;
  packed.bits = bits;
  auto is_mode = [&](const FormatRow& row) { return row.name == mode; };
  const auto& row = *std::find_if(std::begin(kFormats), std::end(kFormats), is_mode);
  auto& coded = coded_.emplace_back();
  coded.levels = levels_of(row, bits);
  auto& matrix = coded.matrix;
  matrix.levels = &coded.levels;
  matrix.layout = row.layout;
  matrix.bits = bits;
  matrix.group_cols = group_size;
  matrix.n_cols = int64_t{scales.shape(-1)} * group_size;
  auto of_bytes = row.scales == Scales::kE4M3 ? ScaleType::kE4M3 : ScaleType::kE8M0;
  bool bytes = scales.dtype() == mx::uint8;
  matrix.scale_type = bytes ? of_bytes : static_cast<ScaleType>(packed.scales.type);
  packed.matrix = &matrix;
  packed.decode = format_kernels(current_isa()).decoder(mode, bits, row.layout);
}

void AttentionLaunch::bind_mask_grad(mx::array& d_mask, const mx::Shape& batch) {
  const auto& shape = d_mask.shape();
  auto strides = contiguous_strides(shape);
  mask_offsets_ = batch_offsets(shape, strides, batch, 3);
  auto stride = [&](int axis) { return shape.end()[axis] == 1 ? 0 : strides.end()[axis]; };
  params.d_mask = {d_mask.data<float>(), mask_offsets_.data(), stride(-3),
                   stride(-2),           stride(-1),           FloatType::kFloat32};
  mask_ = {shape.end()[-3], shape.end()[-2], shape.end()[-1], {}};
  for (size_t b = 0; b < mask_offsets_.size(); ++b) {
    auto end = mask_offsets_.begin() + b;
    if (std::find(mask_offsets_.begin(), end, mask_offsets_[b]) == end) mask_.batches.push_back(b);
  }
}

void AttentionLaunch::take_workspace(int64_t n_floats) {
  // Of rows, as an axis has no more than 2^31 - 1 elements.
  constexpr int64_t kRow = 1024;
  mx::Shape shape{static_cast<int>(ceil_div(n_floats, kRow)), kRow};
  if (n_floats > 0) workspace_ = temporary(shape, mx::float32, stream_).data<float>();
}

bool AttentionLaunch::load() {
  operands.load();
  params.forward.rows = documents_.rows();
  if (documents_.load()) return true;
  for (auto [type, data, size] : outputs_) fill_nan(type, data, size);
  return false;
}

void AttentionLaunch::forward() {
  auto& p = params.forward;
  p.out = outputs_[0].data;
  p.lse = static_cast<float*>(outputs_[1].data);
  attention_forward(p, workspace_);
}

void AttentionLaunch::backward() {
  params.d_q = outputs_[0].data;
  params.d_k = outputs_[1].data;
  params.d_v = outputs_[2].data;
  if (params.d_mask && mask_.batches.empty()) {
    std::fill_n(static_cast<float*>(outputs_[3].data), outputs_[3].size, 0.0f);
  }
  attention_backward(params, mask_, workspace_);
}

}  // namespace mto
