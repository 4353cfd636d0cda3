#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_few_queries_metal.h"

#include <algorithm>

#include "metal/instance.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_few_queries_metal_params.h"

namespace mto {
namespace {

constexpr const char* kFile = "scaled_dot_product_attention_few_queries";
constexpr int64_t kLanes = 32;

// Whether every row begins at a multiple of the run that a lane has.
bool rows_are_aligned(const mx::array& a) {
  int run = static_cast<int>(std::min<int64_t>(few_queries_columns(a.shape(-1)) / kLanes, 4));
  int64_t size = static_cast<int64_t>(a.itemsize()) * run;
  bool aligned = a.offset() % size == 0 && a.shape(-1) % run == 0;
  for (int axis = 0; axis < static_cast<int>(a.ndim()) - 1; ++axis) {
    aligned = aligned && (a.shape(axis) == 1 || a.strides(axis) % run == 0);
  }
  return aligned;
}

mx::array temporary_of(metal::Encoder& encoder, mx::Shape shape) {
  mx::array a(std::move(shape), mx::float32, nullptr, {});
  encoder.allocate(a);
  encoder.keep(a);
  return a;
}

}  // namespace

std::pair<int32_t, int32_t> few_queries_keys(int n_q, int n_k, const AttentionSettings& settings) {
  if (settings.has(AttentionInput::kQDocuments)) return {0, n_k};
  TileRows rows;
  Document all{n_q, 0, n_k};
  for (int i = 0; i < n_q; ++i) {
    rows.add(row_keys(i, all, settings.window_left, settings.window_right));
  }
  if (rows.begin_min >= rows.end_max) return {0, 0};
  return {larger(rows.begin_min, 0), smaller(rows.end_max, n_k)};
}

void launch_few_queries(metal::Encoder& encoder, AttentionMetalBinding& binding,
                        const AttentionSettings& settings, const FewQueriesKernel& kernel,
                        std::vector<mx::array>& outputs) {
  auto& p = binding.params;
  auto &out = outputs[0], &lse = outputs[1];
  int64_t n_heads = int64_t{p.n_batch} * p.n_kv_heads;
  FewQueriesParams few{};
  few.n_rows = p.n_heads / p.n_kv_heads * p.n_q;
  auto [key_begin, key_end] = few_queries_keys(p.n_q, p.n_k, settings);
  auto variant =
      few_queries_variant({n_heads, few.n_rows, key_end - key_begin, p.d, p.d_v, kernel.key_bytes});
  few.key_begin = key_begin;
  few.key_end = key_end;
  few.n_splits = static_cast<int32_t>(variant.n_splits);
  few.split_keys = static_cast<int32_t>(variant.split_keys);
  few.aligned_keys = kernel.aligned_keys;
  few.aligned_values = kernel.aligned_values;
  bool split = variant.n_splits > 1;

  std::vector<metal::FunctionConstant> constants{{kFewQueriesSplit, split}};
  auto bind_outputs = [&] {
    encoder.output(out, kAttentionOut);
    encoder.output(lse, kAttentionLse);
    encoder.value(few, kFewQueriesParams);
  };
  auto columns = std::to_string(variant.key_columns) + ", " + std::to_string(variant.value_columns);
  binding.pipeline(
      {kernel.op,
       kernel.op + "<" + kernel.types + ", " + columns + ", " + std::to_string(variant.rows) + ">",
       constants});
  bind_outputs();
  metal::Size threadgroups{few.n_splits, ceil_div(few.n_rows, variant.rows), n_heads};
  metal::Size threads{kFewQueriesSimdgroups * kLanes};
  if (!split) {
    encoder.dispatch(threadgroups, threads);
    return;
  }
  int n_rows = static_cast<int>(lse.size());
  auto sums = temporary_of(encoder, {n_rows, few.n_splits, std::max(p.d_v, 1)});
  auto totals = temporary_of(encoder, {n_rows, few.n_splits, 2});
  encoder.output(sums, kFewQueriesSums);
  encoder.output(totals, kFewQueriesTotals);
  encoder.dispatch(threadgroups, threads);
  auto merge = metal::instance(std::string(kFile) + "_merge", out.dtype());
  binding.pipeline({kFile, merge, constants}, 1u << kAttentionSinks | 1u << kAttentionRows);
  bind_outputs();
  encoder.input(sums, kFewQueriesSums);
  encoder.input(totals, kFewQueriesTotals);
  encoder.dispatch({n_rows}, {kFewQueriesMergeThreads});
}

void eval_few_queries(metal::Encoder& encoder, AttentionMetalBinding& binding,
                      const std::vector<mx::array>& inputs, const AttentionSettings& settings,
                      std::vector<mx::array>& outputs) {
  auto dtype = outputs[0].dtype();
  int64_t key_bytes = (int64_t{inputs[1].shape(-1)} + inputs[2].shape(-1)) * mx::size_of(dtype);
  FewQueriesKernel kernel{kFile, metal::type_name(dtype), key_bytes};
  kernel.aligned_keys = rows_are_aligned(inputs[1]);
  kernel.aligned_values = rows_are_aligned(inputs[2]);
  launch_few_queries(encoder, binding, settings, kernel, outputs);
}

}  // namespace mto
