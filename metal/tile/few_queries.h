#pragma once

#include <metal_stdlib>

#include "tile/lane_columns.h"

// Softmax over the keys of a range for few rows of queries, by one simdgroup: a chunk of keys at a
// time, so many that each lane has the score of one pair of row and key. Plain Metal.

namespace mto {

// What the lanes hold of Rows rows: of each its sums over the values so far, relative to exp(top).
// Lanes row * kChunk .. row * kChunk + kChunk - 1 have the row's pairs.
template <int Rows, int ValueColumns>
struct RunningRows {
  enum { kChunk = kLanes / Rows, kCount = LaneColumns<ValueColumns>::kCount };

  float sums[Rows][kCount];
  float top;    // of the lane's row
  float total;  // of the lane's pairs

  void clear() thread {
    for (int r = 0; r < Rows; ++r) {
      for (int n = 0; n < kCount; ++n) sums[r][n] = 0.0f;
    }
    top = -INFINITY;
    total = 0.0f;
  }

  // The weight of the lane's pair, once sums and total are relative to the new top.
  float weight(float score, bool visible) thread {
    float highest = visible ? score : -INFINITY;
    for (ushort step = kChunk / 2; step > 0; step /= 2) {
      highest = metal::max(highest, metal::simd_shuffle_xor(highest, step));
    }
    highest = metal::max(highest, top);
    if (metal::simd_any(highest > top)) {
      const float factor = highest > top ? metal::exp(top - highest) : 1.0f;
      total *= factor;
      for (int r = 0; r < Rows; ++r) {
        const float of_row = metal::simd_shuffle(factor, ushort(r * kChunk));
        for (int n = 0; n < kCount; ++n) sums[r][n] *= of_row;
      }
      top = highest;
    }
    const float weight = visible ? metal::exp(score - top) : 0.0f;
    total += weight;
    return weight;
  }
};

// Adds up each of 32 numbers over all lanes; lane i gets the sum of the i-th. A fixed tree, with as
// many exchanges as one sum in every lane would take for each five.
inline float sum_each(thread float* numbers, uint lane) {
  for (ushort step = kLanes / 2; step > 0; step /= 2) {
    const bool upper = (lane & step) != 0;
    for (int i = 0; i < step; ++i) {
      const float kept = upper ? numbers[i + step] : numbers[i];
      const float sent = upper ? numbers[i] : numbers[i + step];
      numbers[i] = kept + metal::simd_shuffle_xor(sent, step);
    }
  }
  return numbers[0];
}

// Takes the keys of chunks first, first + step, ... of a range into `rows`. `row` is that of the
// lane's pairs: row.sees(key) and row.score(dot, key).
template <int Rows, typename Running, typename Keys, typename Values, typename Row>
inline void take_keys(thread Running& rows,
                      const thread float (&queries)[Rows][Keys::Lanes::kCount],
                      const thread Keys& keys, const thread Values& values, thread Row& row,
                      int begin, int end, int first, int step, uint lane) {
  constexpr int kChunk = Running::kChunk;
  for (int chunk = begin + first * kChunk; chunk < end; chunk += step * kChunk) {
    const int key = chunk + int(lane) % kChunk;
    const bool visible = key < end && row.sees(key);
    if (!metal::simd_any(visible)) continue;
    float dots[kLanes];
    for (int k = 0; k < kChunk; ++k) {
      float column[Keys::Lanes::kCount];
      for (int n = 0; n < Keys::Lanes::kCount; ++n) column[n] = 0.0f;
      if (chunk + k < end) keys.load(column, chunk + k, lane);
      for (int r = 0; r < Rows; ++r) {
        float dot = 0.0f;
        for (int n = 0; n < Keys::Lanes::kCount; ++n) {
          dot = metal::fma(queries[r][n], column[n], dot);
        }
        dots[r * kChunk + k] = dot;
      }
    }
    const float dot = sum_each(dots, lane);
    const float weight = rows.weight(visible ? row.score(dot, key) : 0.0f, visible);
    for (int k = 0; k < kChunk; ++k) {
      if (chunk + k >= end) break;
      float column[Values::Lanes::kCount];
      values.load(column, chunk + k, lane);
      for (int r = 0; r < Rows; ++r) {
        const float of_row = metal::simd_shuffle(weight, ushort(r * kChunk + k));
        for (int n = 0; n < Values::Lanes::kCount; ++n) {
          rows.sums[r][n] = metal::fma(of_row, column[n], rows.sums[r][n]);
        }
      }
    }
  }
}

// exp(top - highest), and 0 for sums of nothing.
inline float relative_to(float highest, float top) {
  return top == -INFINITY ? 0.0f : metal::exp(top - highest);
}

// What is left of a row: its sums are to be multiplied by `factor`.
struct RowEnd {
  float factor, lse;
};

// A sink takes part in the total without a value. A row of nothing is 0, a bad one NaN.
inline RowEnd end_row(float top, float total, bool has_sink, float sink, bool bad) {
  if (bad) return {NAN, NAN};
  const float highest = has_sink ? metal::max(top, sink) : top;
  const float factor = relative_to(highest, top);
  total *= factor;
  if (has_sink) total += relative_to(highest, sink);
  if (total == 0.0f) return {0.0f, -INFINITY};
  return {factor / total, highest + metal::log(total)};
}

// Threadgroup memory in which simdgroups add up what each has of the rows.
template <int Rows, int ValueColumns, int Simdgroups>
struct RowsShared {
  float tops[Simdgroups][Rows], totals[Simdgroups][Rows];
  float sums[Simdgroups][ValueColumns];  // of one row
};

// Adds them up, in order. sink.begin(row, top, total) and then sink.store(row, column, sum) are
// called for each row, by the threads whose columns they are.
template <int Rows, int ValueColumns, int Simdgroups, typename Sink>
inline void merge_simdgroups(const thread RunningRows<Rows, ValueColumns>& rows,
                             threadgroup RowsShared<Rows, ValueColumns, Simdgroups>& shared,
                             thread Sink& sink, int n_rows, int n_columns, uint simdgroup,
                             uint lane) {
  using Running = RunningRows<Rows, ValueColumns>;
  float total = rows.total;
  for (ushort step = Running::kChunk / 2; step > 0; step /= 2) {
    total += metal::simd_shuffle_xor(total, step);
  }
  if (lane % Running::kChunk == 0) {
    shared.tops[simdgroup][lane / Running::kChunk] = rows.top;
    shared.totals[simdgroup][lane / Running::kChunk] = total;
  }
  threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  for (int r = 0; r < n_rows; ++r) {
    float highest = -INFINITY, of_all = 0.0f;
    for (int s = 0; s < Simdgroups; ++s) highest = metal::max(highest, shared.tops[s][r]);
    for (int s = 0; s < Simdgroups; ++s) {
      of_all += shared.totals[s][r] * relative_to(highest, shared.tops[s][r]);
    }
    const float factor = relative_to(highest, shared.tops[simdgroup][r]);
    for (int n = 0; n < Running::kCount; ++n) {
      shared.sums[simdgroup][LaneColumns<ValueColumns>::column(n, lane)] = rows.sums[r][n] * factor;
    }
    threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    sink.begin(r, highest, of_all);
    for (int column = simdgroup * kLanes + lane; column < n_columns;
         column += Simdgroups * kLanes) {
      float sum = 0.0f;
      for (int s = 0; s < Simdgroups; ++s) sum += shared.sums[s][column];
      sink.store(r, column, sum);
    }
    threadgroup_barrier(metal::mem_flags::mem_threadgroup);  // before the next row's sums
  }
}

}  // namespace mto
