// Gradients of attention by queries, and by keys and values, by TensorOps: two kernels, both of
// which recompute weights from lse.
//
// Rows have owners, 16 at a time, which walk over the rows that these meet: owners of queries over
// keys, owners of keys over the queries of all heads that read them. It is one loop. Each step has
// two products of the owner's rows and those that it walks over, queries by keys and cotangents by
// values, which become weights and derivatives of scores; these are left operands of products with
// the rows walked over, which add to the gradient.
//
// Apart: each simdgroup owns rows, and left operands stay in registers where the GPU can take them
// as they lie. Their static k must not meet a shorter operand, so the last step of a head is moved
// back to be whole.
// Together: the simdgroups of a threadgroup own the same rows, each some columns of their
// gradient, as registers do not hold long rows. Each does a step of its own, and left operands pass
// through threadgroup memory to all. Steps may be short.
//
// Memory is written once, by one owner, in the order of its walk: results are the same every time.

#include <metal_stdlib>

#include "tile/attention_grad.h"

using namespace metal;
using namespace mpp::tensor_ops;

// The numbers are those of kGradWants...
constant bool wants_alibi [[function_constant(8)]];
constant bool wants_values [[function_constant(9)]];

// Rows begin .. begin + n of query head `head`, the first n_done of them done by the step before.
struct Step {
  int head, begin, n_done, n;
};

// The index-th step over rows of first_head and the heads after it. Whole: none is short.
template <int Cols, bool Whole>
inline Step step_of(int index, int first_head, int n_rows) {
  const int n_steps = (n_rows + Cols - 1) / Cols, begin = index % n_steps * Cols;
  const int start = Whole ? min(begin, n_rows - Cols) : begin;
  return {first_head + index / n_steps, start, begin - start, min(Cols, n_rows - start)};
}

// What an owner has, and what it walks over. Products of the first two are scores.
template <typename T>
struct Walk {
  mto::GradRows<T> own, own_values, walked, walked_values;
  int own_head, begin, n;  // rows
  int kv_head, first_head, n_walked, n_steps;
};

template <bool Queries, int Cols, typename T>
inline Walk<T> walk_of(thread const mto::GradCall& call, device T* q, device T* k, device T* v,
                       device T* d_out, int head, int tile) {
  constant auto& p = *call.params;
  const auto queries = mto::grad_rows(call, mto::kAttentionQ, q, p.d);
  const auto cotangents = mto::grad_rows(call, mto::kAttentionDOut, d_out, p.d_v);
  const auto keys = mto::grad_rows(call, mto::kAttentionK, k, p.d);
  const auto values = mto::grad_rows(call, mto::kAttentionV, v, p.d_v);
  const int group = p.n_heads / p.n_kv_heads, n_own = Queries ? p.n_q : p.n_k;
  Walk<T> walk{queries, cotangents, keys, values};
  if (!Queries) walk = {keys, values, queries, cotangents};
  walk.own_head = head;
  walk.begin = tile * mto::kGradRows;
  walk.n = min(int(mto::kGradRows), n_own - walk.begin);
  walk.kv_head = Queries ? head / group : head;
  walk.first_head = Queries ? head : head * group;
  walk.n_walked = Queries ? p.n_k : p.n_q;
  walk.n_steps = (Queries ? 1 : group) * ((walk.n_walked + Cols - 1) / Cols);
  return walk;
}

// The head of rows walked over.
template <bool Queries, typename T>
inline int walked_head(thread const Walk<T>& walk, Step step) {
  return Queries ? walk.kv_head : step.head;
}

// What an owner knows of its rows: of queries their extremes, of keys theirs.
struct Owner {
  mto::TileRows rows;
  mto::TileKeys keys;
};

template <bool Queries, typename T, int N, int NKeys>
inline Owner owner_of(thread const mto::GradCall& call, thread const Walk<T>& walk,
                      threadgroup mto::GradQueries<N>& queries,
                      threadgroup mto::GradKeys<NKeys>& keys, int lane) {
  Owner owner;
  if (Queries) {
    owner.rows = mto::load_rows(queries, call, walk.begin, walk.n, lane);
    mto::load_statistics(queries, call, walk.own_head, walk.begin, walk.n, lane);
  } else {
    owner.keys = mto::load_keys(keys, call, walk.begin, walk.n, lane);
  }
  return owner;
}

// Weights and derivatives of scores of a step. False where no query sees a key.
template <bool Queries, typename T, typename Product, typename Tile, int N, int NKeys>
inline bool score(thread Product& product, thread Tile& weights, thread Tile& d_scores,
                  thread const mto::GradCall& call, thread const Walk<T>& walk, Owner owner,
                  Step step, threadgroup mto::GradQueries<N>& queries,
                  threadgroup mto::GradKeys<NKeys>& keys, int lane, thread float& moment) {
  const int query = Queries ? walk.begin : step.begin, n_queries = Queries ? walk.n : step.n;
  const int key = Queries ? step.begin : walk.begin;
  simdgroup_barrier(mem_flags::mem_threadgroup);  // facts of the step before are no longer read
  if (Queries) owner.keys = mto::load_keys(keys, call, key, step.n, lane);
  if (!Queries) owner.rows = mto::load_rows(queries, call, query, step.n, lane);
  const auto blocks = mto::attention_blocks(*call.params, call.starts, step.head, call.block_mask);
  const auto visibility =
      mto::tile_visibility(blocks, owner.rows, owner.keys, query, query + n_queries);
  if (visibility == mto::Visibility::kNone) return false;
  if (!Queries) mto::load_statistics(queries, call, step.head, query, step.n, lane);
  simdgroup_barrier(mem_flags::mem_threadgroup);

  const int head = walked_head<Queries>(walk, step);
  mto::multiply_rows(product, mto::row_of(walk.own, walk.own_head, walk.begin), walk.n, walk.own,
                     mto::row_of(walk.walked, head, step.begin), step.n, walk.walked, weights);
  mto::multiply_rows(product, mto::row_of(walk.own_values, walk.own_head, walk.begin), walk.n,
                     walk.own_values, mto::row_of(walk.walked_values, head, step.begin), step.n,
                     walk.walked_values, d_scores);
  auto tile = mto::grad_scores(call, step.head, key, visibility);
  tile.row_begin = Queries ? 0 : step.n_done;
  tile.row_end = n_queries;
  tile.key_begin = Queries ? step.n_done : 0;
  tile.key_end = Queries ? step.n : walk.n;
  moment += mto::weigh<Queries, false>(weights, d_scores, tile, queries, keys);
  return true;
}

// sums += tile . rows, where the tile is in registers. It passes through memory where the GPU
// cannot take it as it lies.
template <int Cols, typename T, typename Product, typename Tile, typename Sums>
inline void add_apart(thread Product& product, thread Tile& tile, device T* rows,
                      mto::GradRows<T> of, thread Sums& sums, threadgroup float* memory) {
  using Ext = extents<int, Cols, mto::kGradRows>;
  using Rows = tensor<device T, dextents<int, 2>, tensor_inline>;
  Rows right(rows, dextents<int, 2>(of.depth, Cols), array<int, 2>{1, of.row});
  if (product.template is_compatible_as_left_input<float, T, float>(tile)) {
    auto left = product.template get_left_input_cooperative_tensor<float, T, float>(tile);
    product.run(left, right, sums);
  } else {
    tensor<threadgroup float, Ext, tensor_inline> left(memory, Ext());
    tile.store(left);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    product.run(left, right, sums);
    simdgroup_barrier(mem_flags::mem_threadgroup);  // before the memory is written again
  }
}

// sums += tile . rows, where the tile is in memory: of n rows columns first_col and up.
template <int Cols, int NCols, typename T, typename Left, typename Product, typename Sums>
inline void add_together(thread Product& product, threadgroup Left* tile, device T* rows, int n,
                         mto::GradRows<T> of, int first_col, thread Sums& sums) {
  using Ext = dextents<int, 2>;
  if (first_col >= of.depth) return;
  tensor<threadgroup Left, Ext, tensor_inline> left(tile, Ext(n, mto::kGradRows),
                                                    array<int, 2>{1, Cols});
  tensor<device T, Ext, tensor_inline> right(
      rows + first_col, Ext(min(NCols, of.depth - first_col), n), array<int, 2>{1, of.row});
  product.run(left, right, sums);
}

template <typename Tile, typename G>
inline void write_grad(thread Tile& sums, device G* grad, int64_t row, int n_rows, int first_col,
                       int n_cols, float factor) {
  MTO_UNROLL for (ushort slot = 0; slot < sums.get_capacity(); ++slot) {
    if (!sums.is_valid_element(slot)) continue;
    auto at = sums.get_multidimensional_index(slot);
    const int r = at[1], c = first_col + at[0];
    if (r < n_rows && c < n_cols) grad[(row + r) * n_cols + c] = G(sums[slot] * factor);
  }
}

// Left operands on their way through threadgroup memory; of simdgroups that work together, of how
// many rows they are.
template <typename T, int NTiles, int Cols, int Simdgroups>
struct Handed {
  T tiles[Simdgroups][NTiles][mto::kGradRows * Cols];
  int n[Simdgroups];
};

// Adds to a simdgroup's columns what all simdgroups handed over of the steps from `at` on.
template <bool Queries, int NFirst, int NValues, typename T, typename Left, int NTiles, int Cols,
          int Simdgroups, typename AddFirst, typename AddValues, typename First, typename Values>
inline void add_all(thread AddFirst& add_first, thread AddValues& add_values,
                    thread const Walk<T>& walk, int at,
                    threadgroup Handed<Left, NTiles, Cols, Simdgroups>& handed, int simdgroup,
                    thread First& first, thread Values& values) {
  for (int i = 0; i < Simdgroups; ++i) {
    const int n = handed.n[i];
    if (n == 0) continue;
    const Step step = step_of<Cols, false>(at + i, walk.first_head, walk.n_walked);
    const int head = walked_head<Queries>(walk, step);
    add_together<Cols, NFirst>(add_first, handed.tiles[i][0],
                               mto::row_of(walk.walked, head, step.begin), n, walk.walked,
                               simdgroup * NFirst, first);
    if constexpr (!Queries) {
      add_together<Cols, NValues>(add_values, handed.tiles[i][1],
                                  mto::row_of(walk.walked_values, head, step.begin), n,
                                  walk.walked_values, simdgroup * NValues, values);
    }
  }
}

template <int Cols, bool Relaxed>
constexpr matmul2d_descriptor scores_descriptor() {
  return matmul2d_descriptor(mto::kGradRows, Cols, dynamic_length_v<int>, false, true, Relaxed,
                             matmul2d_descriptor::mode::multiply);
}

template <int NCols, int K, bool Relaxed>
constexpr matmul2d_descriptor grad_descriptor() {
  return matmul2d_descriptor(mto::kGradRows, NCols, K, false, false, Relaxed,
                             matmul2d_descriptor::mode::multiply_accumulate);
}

// Queries: they are owned, else keys. NFirst and NValues: columns of a simdgroup, of d_q or d_k and
// of d_v. Cols: rows of a step.
template <typename T, typename G, bool Queries, int NFirst, int NValues, int Cols, int Simdgroups,
          bool Together, bool Relaxed>
[[kernel, max_total_threads_per_threadgroup(Simdgroups * 32)]] void attention_grad(
    device T* q [[buffer(0)]], device T* k [[buffer(1)]], device T* v [[buffer(2)]],
    MTO_ATTENTION_OPTIONS, device T* d_out [[buffer(11)]], const device float* lse [[buffer(10)]],
    const device float* constants [[buffer(21)]], device G* d_first [[buffer(22)]],
    device G* d_values [[buffer(23), function_constant(wants_values)]],
    device float* d_alibi [[buffer(24), function_constant(wants_alibi)]],
    uint3 group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int kK = Together ? dynamic_length_v<int> : Cols;
  using Operand = tensor<device T, dextents<int, 2>, tensor_inline>;
  // A tile that stays in registers keeps its type, and half has not the range of weights.
  using Left = conditional_t<Together && is_same_v<T, bfloat>, bfloat, float>;
  using LeftOperand = tensor<threadgroup Left, dextents<int, 2>, tensor_inline>;
  matmul2d<scores_descriptor<Cols, Relaxed>(), execution_simdgroup> product;
  matmul2d<grad_descriptor<NFirst, kK, Relaxed>(), execution_simdgroup> add_first;
  matmul2d<grad_descriptor<NValues, kK, Relaxed>(), execution_simdgroup> add_values;
  auto weights = product.template get_destination_cooperative_tensor<Operand, Operand, float>();
  auto d_scores = product.template get_destination_cooperative_tensor<Operand, Operand, float>();
  auto first = add_first.template get_destination_cooperative_tensor<LeftOperand, Operand, float>();
  auto values =
      add_values.template get_destination_cooperative_tensor<LeftOperand, Operand, float>();
  mto::clear(first);
  mto::clear(values);
  constexpr int kLast = Together && !Queries ? 1 : 0;  // of the tiles that a simdgroup hands over
  threadgroup Handed<Left, kLast + 1, Cols, Simdgroups> handed;
  threadgroup mto::GradQueries<Queries ? mto::kGradRows : Cols> all_queries[Simdgroups];
  threadgroup mto::GradKeys<Queries ? Cols : mto::kGradRows> all_keys[Simdgroups];
  threadgroup auto& queries = all_queries[simdgroup];
  threadgroup auto& keys = all_keys[simdgroup];

  const mto::GradCall call{&params,
                           mto::attention_starts(params, batch, group.z),
                           rows,
                           q_segments,
                           k_segments,
                           mask,
                           block_mask,
                           alibi,
                           lse,
                           constants,
                           int64_t(group.z)};
  const int tile = Together ? int(group.x) : int(group.x) * Simdgroups + int(simdgroup);
  const auto walk = walk_of<Queries, Cols>(call, q, k, v, d_out, int(group.y), tile);
  if (walk.n <= 0) return;  // of simdgroups that work together all, or none
  const Owner owner = owner_of<Queries>(call, walk, queries, keys, lane);
  float moment = 0.0f;
  for (int at = 0; at < walk.n_steps; at += Together ? Simdgroups : 1) {
    const int index = Together ? at + int(simdgroup) : at;
    const Step step = step_of<Cols, !Together>(index, walk.first_head, walk.n_walked);
    const bool any =
        index < walk.n_steps && score<Queries>(product, weights, d_scores, call, walk, owner, step,
                                               queries, keys, lane, moment);
    if constexpr (Together) {
      if (any) mto::hand_over(d_scores, handed.tiles[simdgroup][0], Cols);
      if (any && !Queries) mto::hand_over(weights, handed.tiles[simdgroup][kLast], Cols);
      if (lane == 0) handed.n[simdgroup] = any ? step.n : 0;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      add_all<Queries, NFirst, NValues>(add_first, add_values, walk, at, handed, simdgroup, first,
                                        values);
      threadgroup_barrier(mem_flags::mem_threadgroup);  // before it is written again
    } else if (any) {
      const int head = walked_head<Queries>(walk, step);
      add_apart<Cols>(add_first, d_scores, mto::row_of(walk.walked, head, step.begin), walk.walked,
                      first, handed.tiles[simdgroup][0]);
      if constexpr (!Queries) {
        add_apart<Cols>(add_values, weights, mto::row_of(walk.walked_values, head, step.begin),
                        walk.walked_values, values, handed.tiles[simdgroup][0]);
      }
    }
  }

  const bool bad = mto::bad_documents(rows);
  const int first_col = Together ? int(simdgroup) : 0, n_heads = params.n_heads;
  const int64_t head = int64_t(group.z) * (Queries ? n_heads : params.n_kv_heads) + group.y;
  const int64_t row = head * (Queries ? params.n_q : params.n_k) + walk.begin;
  write_grad(first, d_first, row, walk.n, first_col * NFirst, params.d, bad ? NAN : params.scale);
  if constexpr (!Queries) {
    write_grad(values, d_values, row, walk.n, first_col * NValues, params.d_v, bad ? NAN : 1.0f);
  }
  if (Queries && wants_alibi) {
    const int64_t owner_of_all = head * ((params.n_q + mto::kGradRows - 1) / mto::kGradRows) + tile;
    moment = mto::sum_lanes(moment);
    const int64_t part = Together ? owner_of_all * Simdgroups + simdgroup : owner_of_all;
    if (lane == 0) d_alibi[part] = bad ? NAN : -moment;
  }
}
