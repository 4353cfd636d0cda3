#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_metal_binding.h"

#include <algorithm>
#include <limits>

#include "common/integers.h"
#include "metal/instance.h"
#include "metal/strided.h"

namespace mto {
namespace {

using enum AttentionInput;

int32_t mask_type(const mx::array& mask) {
  if (mask.dtype() == mx::bool_) return kBoolMask;
  if (mask.dtype() == mx::float32) return kFloatMask;
  return mask.dtype() == mx::float16 ? kHalfMask : kBFloatMask;
}

// Whether a tensor operation can read the rows: elements side by side, rows at a positive distance
// of 32 bits.
bool are_matrices(const mx::array& a) {
  bool dense = a.shape(-1) <= 1 || a.strides(-1) == 1;
  int64_t row = a.strides(-2);
  return dense && (a.shape(-2) <= 1 || (row > 0 && row <= std::numeric_limits<int32_t>::max()));
}

}  // namespace

AttentionMetalBinding::AttentionMetalBinding(metal::Encoder& encoder,
                                             const std::vector<mx::array>& inputs,
                                             const AttentionSettings& settings,
                                             const mx::Shape& batch)
    : encoder_(encoder),
      inputs_(inputs),
      settings_(settings),
      batch_(batch),
      strides_(kAttentionOperands, std::vector<int64_t>(batch.size(), 0)) {
  const auto &q = inputs[0], &k = inputs[1], &v = inputs[2];
  params.n_batch = 1;
  for (int n : batch) params.n_batch *= n;
  params.n_heads = q.shape(-3);
  params.n_kv_heads = k.shape(-3);
  params.n_q = q.shape(-2);
  params.n_k = k.shape(-2);
  params.d = q.shape(-1);
  params.scale = settings.scale;
  params.softcap = settings.softcap;
  params.window_left = settings.window_left;
  params.window_right = settings.window_right;
  params.block_rows = settings.block_rows;
  params.block_keys = settings.block_keys;
  add_matrices(kAttentionQ, q);
  if (k.dtype() != mx::uint32) {
    params.d_v = v.shape(-1);
    add_matrices(kAttentionK, k);
    add_matrices(kAttentionV, v);
  }
  add_option(kAttentionMask, kMask, "hij");
  add_option(kAttentionAlibi, kAlibi, "h");
  add_option(kAttentionSinks, kSinks, "h");
  add_option(kAttentionQSegments, kQSegments, "i");
  add_option(kAttentionKSegments, kKSegments, "i");
  add_option(kAttentionBlockMask, kBlockMask, "hij");
  if (settings.has(kQDocuments)) make_rows();
}

void AttentionMetalBinding::add(AttentionMetalOperand operand, const mx::array& a,
                                std::string_view axes) {
  auto [begin, end] = metal::span_of(a);
  bound_.push_back({a, begin, end, operand});
  strides_[operand] = metal::batch_strides(a, batch_, static_cast<int>(axes.size()));
  auto& strides = params.operands[operand];
  strides = {-begin, 0, 0, 0};
  for (size_t i = 0; i < axes.size(); ++i) {
    int axis = static_cast<int>(i) - static_cast<int>(axes.size());
    auto& stride = axes[i] == 'h' ? strides.head : axes[i] == 'i' ? strides.row : strides.column;
    if (a.shape(axis) != 1) stride = a.strides(axis);
  }
}

void AttentionMetalBinding::add_matrices(AttentionMetalOperand operand, const mx::array& a) {
  add(operand, are_matrices(a) ? a : metal::dense_copy(encoder_, a), "hij");
  auto& strides = params.operands[operand];
  strides.row = std::max<int64_t>(strides.row, 1);
  strides.column = 1;
}

void AttentionMetalBinding::add_option(AttentionMetalOperand operand, AttentionInput input,
                                       std::string_view axes) {
  if (settings_.has(input)) add(operand, inputs_[settings_.at(input)], axes);
}

void AttentionMetalBinding::make_rows() {
  if (params.n_q == 0) return;
  const auto &q = inputs_[settings_.at(kQDocuments)], &k = inputs_[settings_.at(kKDocuments)];
  rows_.emplace(mx::Shape{params.n_q, 3}, mx::int32, nullptr, std::vector<mx::array>{});
  encoder_.allocate(*rows_);
  encoder_.keep(*rows_);
  constexpr int kThreads = 256;
  encoder_.pipeline(
      {"scaled_dot_product_attention_rows", metal::instance("attention_rows", kThreads), {}});
  auto [q_begin, q_end] = metal::span_of(q);
  auto [k_begin, k_end] = metal::span_of(k);
  encoder_.view(q, q_begin, q_end, 0);
  encoder_.view(k, k_begin, k_end, 1);
  encoder_.output(*rows_, 2);
  AttentionDocumentsMetalParams lengths{
      -q_begin,     q.strides(0),          -k_begin,
      k.strides(0), q.shape(0) - 1,        params.n_q,
      params.n_k,   settings_.window_left, settings_.window_right};
  encoder_.value(lengths, 3);
  encoder_.dispatch({ceil_div(params.n_q, kThreads)}, {kThreads});
}

void AttentionMetalBinding::pipeline(metal::Kernel kernel, uint32_t has) {
  bool masked = settings_.has(kMask);
  int32_t type = masked ? mask_type(inputs_[settings_.at(kMask)]) : kBoolMask;
  for (auto constant : {metal::FunctionConstant{kAttentionHasMask, masked},
                        {kAttentionMaskTypeOption, type},
                        {kAttentionHasSoftcap, settings_.softcap > 0},
                        {kAttentionHasAlibi, settings_.has(kAlibi)},
                        {kAttentionHasSinks, settings_.has(kSinks)},
                        {kAttentionHasSegments, settings_.has(kQSegments)},
                        {kAttentionHasDocuments, settings_.has(kQDocuments)},
                        {kAttentionHasBlocks, settings_.has(kBlockMask)}}) {
    kernel.constants.push_back(constant);
  }
  encoder_.pipeline(kernel);
  for (const auto& [array, begin, end, index] : bound_) {
    if (!(has >> index & 1)) continue;
    if (array.size() > 0) {
      encoder_.view(array, begin, end, index);
    } else {
      encoder_.value(int32_t{0}, index);  // there has to be something to bind
    }
  }
  auto table = metal::batch_table(batch_, strides_);
  params.n_batch_dims = static_cast<int32_t>(table.size() / (1 + strides_.size()));
  if (table.empty()) table.resize(1);
  encoder_.value(params, kAttentionParams);
  encoder_.bytes(table.data(), table.size() * sizeof(int64_t), kAttentionBatch);
  if (rows_ && (has >> kAttentionRows & 1)) encoder_.input(*rows_, kAttentionRows);
}

}  // namespace mto
