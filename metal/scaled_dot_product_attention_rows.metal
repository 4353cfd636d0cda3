#include <metal_stdlib>

#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_metal_params.h"

using namespace metal;

// The i-th end is at i * stride.
struct Ends {
  const device int* of;
  int64_t stride;
};

inline int end_at(thread const Ends& ends, int i) { return ends.of[i * ends.stride]; }

// Whether no end between the first and the last of those that this thread looks at is out of order.
template <int Threads>
inline bool ascends(thread const Ends& ends, int n_documents, int length, uint thread_in_group) {
  bool right = true;
  for (int i = thread_in_group; i <= n_documents; i += Threads) {
    int before = i == 0 ? 0 : end_at(ends, i - 1);
    right = right && before <= end_at(ends, i) && end_at(ends, i) <= length;
  }
  return right;
}

// The keys of every row of a call with documents; all of them end at -1 where the lengths are no
// list of documents.
template <int Threads>
[[kernel, max_total_threads_per_threadgroup(Threads)]] void attention_rows(
    const device int* q_ends [[buffer(0)]], const device int* k_ends [[buffer(1)]],
    device mto::RowKeys* rows [[buffer(2)]],
    constant mto::AttentionDocumentsMetalParams& lengths [[buffer(3)]],
    uint row [[thread_position_in_grid]], uint thread_in_group [[thread_index_in_threadgroup]]) {
  Ends q{q_ends + lengths.q_start, lengths.q_stride}, k{k_ends + lengths.k_start, lengths.k_stride};
  const int n = lengths.n_documents;
  threadgroup int wrong;
  if (thread_in_group == 0) wrong = 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  bool right = ascends<Threads>(q, n, lengths.n_q, thread_in_group) &&
               ascends<Threads>(k, n, lengths.n_k, thread_in_group);
  if (!right) wrong = 1;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const int i = row;
  if (i >= lengths.n_q) return;
  if (wrong != 0) {
    rows[i] = mto::RowKeys{i, 0, -1};
    return;
  }
  // The number of ends at or before the row: those of documents up to the row's own.
  int low = 0, high = n + 1;
  while (low < high) {
    int middle = (low + high) / 2;
    if (end_at(q, middle) <= i) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == 0 || low > n) {
    rows[i] = mto::no_keys(i);
    return;
  }
  mto::Document document{end_at(q, low), end_at(k, low - 1), end_at(k, low)};
  rows[i] = mto::row_keys(i, document, lengths.window_left, lengths.window_right);
}
