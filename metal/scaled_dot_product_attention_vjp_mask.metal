// The gradient of an additive mask, summed over all that it was broadcast over.
//
// A threadgroup owns a tile of the mask. Its simdgroups share out the tiles of scores that it was
// added to, in batch elements, heads, queries and keys; weights are recomputed from lse, by
// TensorOps. At last the simdgroups' sums are added, in their order.

#include <metal_stdlib>

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_vjp_metal_params.h"
#include "tile/attention_grad.h"

using namespace metal;
using namespace mpp::tensor_ops;

// One of the tiles of scores that a tile of the mask was added to.
struct Place {
  int64_t batch;
  int head, query, key;
};

inline int n_query_tiles(constant mto::AttentionParams& params) {
  return (params.n_q + mto::kGradRows - 1) / mto::kGradRows;
}

inline int n_key_tiles(constant mto::AttentionParams& params) {
  return (params.n_k + mto::kGradMaskKeys - 1) / mto::kGradMaskKeys;
}

inline int n_places(constant mto::AttentionParams& params,
                    constant mto::AttentionMaskGradParams& own) {
  int n = own.n_shared;
  if (own.n_heads == 1) n *= params.n_heads;
  if (own.n_q == 1) n *= n_query_tiles(params);
  if (own.n_k == 1) n *= n_key_tiles(params);
  return n;
}

// Of an index the part along an axis of n that the mask broadcasts over; the rest stays.
inline int along(thread int& index, int n) {
  int at = index % n;
  index /= n;
  return at;
}

inline Place place_of(int index, uint3 group, constant mto::AttentionParams& params,
                      constant mto::AttentionMaskGradParams& own, constant int64_t* dims) {
  const int key = own.n_k == 1 ? along(index, n_key_tiles(params)) : int(group.x);
  const int query = own.n_q == 1 ? along(index, n_query_tiles(params)) : int(group.y);
  const int head = own.n_heads == 1 ? along(index, params.n_heads) : int(group.z) % own.n_heads;
  // Rows of a table are a size and a stride.
  constant int64_t* shared_dims = dims + 2 * own.n_own_dims;
  const auto element = mto::batch_offsets<1>(dims, own.n_own_dims, int(group.z) / own.n_heads);
  const auto shared = mto::batch_offsets<1>(shared_dims, own.n_shared_dims, index);
  return {element.of[0] + shared.of[0], head, query * mto::kGradRows, key * mto::kGradMaskKeys};
}

// Adds the derivatives of the scores of a place, as far as queries see keys.
template <typename T, typename Product, typename Tile, int N, int NKeys>
inline void add_scores(thread Product& product, thread Tile& weights, thread Tile& d_scores,
                       thread Tile& sums, thread const mto::GradCall& call, Place at, device T* q,
                       device T* k, device T* v, device T* d_out,
                       threadgroup mto::GradQueries<N>& queries,
                       threadgroup mto::GradKeys<NKeys>& keys, int lane) {
  constant auto& p = *call.params;
  const int n_q = min(N, p.n_q - at.query), n_k = min(NKeys, p.n_k - at.key);
  simdgroup_barrier(mem_flags::mem_threadgroup);  // facts of the place before are no longer read
  const auto tile_rows = mto::load_rows(queries, call, at.query, n_q, lane);
  const auto tile_keys = mto::load_keys(keys, call, at.key, n_k, lane);
  const auto blocks = mto::attention_blocks(p, call.starts, at.head, call.block_mask);
  const auto visibility =
      mto::tile_visibility(blocks, tile_rows, tile_keys, at.query, at.query + n_q);
  if (visibility == mto::Visibility::kNone) return;
  mto::load_statistics(queries, call, at.head, at.query, n_q, lane);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  const auto of_q = mto::grad_rows(call, mto::kAttentionQ, q, p.d);
  const auto of_k = mto::grad_rows(call, mto::kAttentionK, k, p.d);
  const auto of_v = mto::grad_rows(call, mto::kAttentionV, v, p.d_v);
  const auto of_d_out = mto::grad_rows(call, mto::kAttentionDOut, d_out, p.d_v);
  const int kv_head = mto::kv_head_of(p, at.head);
  mto::multiply_rows(product, mto::row_of(of_q, at.head, at.query), n_q, of_q,
                     mto::row_of(of_k, kv_head, at.key), n_k, of_k, weights);
  mto::multiply_rows(product, mto::row_of(of_d_out, at.head, at.query), n_q, of_d_out,
                     mto::row_of(of_v, kv_head, at.key), n_k, of_v, d_scores);
  auto tile = mto::grad_scores(call, at.head, at.key, visibility);
  tile.row_begin = tile.key_begin = 0;
  tile.row_end = n_q;
  tile.key_end = n_k;
  mto::weigh<true, true>(weights, d_scores, tile, queries, keys);
  MTO_UNROLL for (ushort i = 0; i < sums.get_capacity(); ++i) sums[i] += d_scores[i];
}

// Sums of simdgroups, in their order, of the rows and columns that belong to element (r, c).
inline float total(const threadgroup float (*parts)[mto::kGradRows * mto::kGradMaskKeys], int r,
                   int n_rows, int c, int n_cols) {
  float sum = 0.0f;
  for (int part = 0; part < mto::kGradMaskSimdgroups; ++part) {
    for (int y = r; y < r + n_rows; ++y) {
      for (int x = c; x < c + n_cols; ++x) sum += parts[part][y * mto::kGradMaskKeys + x];
    }
  }
  return sum;
}

// Grid: tiles of the mask along its keys, its queries, and its heads in all of its batch elements.
template <typename T, bool Relaxed>
[[kernel, max_total_threads_per_threadgroup(mto::kGradMaskSimdgroups * 32)]] void
attention_mask_grad(
    device T* q [[buffer(0)]], device T* k [[buffer(1)]], device T* v [[buffer(2)]],
    MTO_ATTENTION_OPTIONS, device T* d_out [[buffer(11)]], const device float* lse [[buffer(10)]],
    const device float* constants [[buffer(21)]], device float* d_mask [[buffer(25)]],
    constant mto::AttentionMaskGradParams& own [[buffer(26)]],
    constant int64_t* dims [[buffer(27)]], uint3 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  constexpr int kRows = mto::kGradRows, kKeys = mto::kGradMaskKeys;
  constexpr int kSimdgroups = mto::kGradMaskSimdgroups;
  using Operand = tensor<device T, dextents<int, 2>, tensor_inline>;
  constexpr auto kScores = matmul2d_descriptor(kRows, kKeys, dynamic_length_v<int>, false, true,
                                               Relaxed, matmul2d_descriptor::mode::multiply);
  matmul2d<kScores, execution_simdgroup> product;
  auto weights = product.template get_destination_cooperative_tensor<Operand, Operand, float>();
  auto d_scores = product.template get_destination_cooperative_tensor<Operand, Operand, float>();
  auto sums = product.template get_destination_cooperative_tensor<Operand, Operand, float>();
  mto::clear(sums);
  threadgroup mto::GradQueries<kRows> queries[kSimdgroups];
  threadgroup mto::GradKeys<kKeys> keys[kSimdgroups];
  threadgroup float parts[kSimdgroups][kRows * kKeys];

  for (int index = simdgroup; index < n_places(params, own); index += kSimdgroups) {
    const Place at = place_of(index, group, params, own, dims);
    const mto::GradCall call{&params,    mto::attention_starts(params, batch, at.batch),
                             rows,       q_segments,
                             k_segments, mask,
                             block_mask, alibi,
                             lse,        constants,
                             at.batch};
    add_scores(product, weights, d_scores, sums, call, at, q, k, v, d_out, queries[simdgroup],
               keys[simdgroup], lane);
  }
  mto::hand_over(sums, parts[simdgroup], kKeys);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const bool bad = mto::bad_documents(rows), one_row = own.n_q == 1, one_key = own.n_k == 1;
  const int row = one_row ? 0 : int(group.y) * kRows, key = one_key ? 0 : int(group.x) * kKeys;
  const int n_rows = min(kRows, own.n_q - row), n_cols = min(kKeys, own.n_k - key);
  for (int i = int(simdgroup * 32 + lane); i < n_rows * n_cols; i += kSimdgroups * 32) {
    const int r = i / n_cols, c = i % n_cols;
    const float sum = total(parts, r, one_row ? kRows : 1, c, one_key ? kKeys : 1);
    d_mask[(int64_t(group.z) * own.n_q + row + r) * own.n_k + key + c] = bad ? NAN : sum;
  }
}
