#pragma once

// Which keys a row sees, and which tiles of (rows, keys) need no visit: pure functions of
// positions, windows, documents, segments and the block mask. C++ and Metal.

#ifndef __METAL_VERSION__
#include <cstdint>
#endif

namespace mto {

enum : int32_t {
  kNoLimit = -1,          // of a window
  kLargest = 0x7fffffff,  // neutral for a minimum
};

inline int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
inline int32_t larger(int32_t a, int32_t b) { return a < b ? b : a; }

// The keys that one row may see by causality, window and documents: begin <= j < end. `aligned` is
// the row's position i' among the keys.
struct RowKeys {
  int32_t aligned, begin, end;
};

// Where a row's document ends among the rows, and its keys. Without documents: n_q, 0, n_k.
struct Document {
  int32_t rows_end, keys_begin, keys_end;
};

// i' = i + keys_end - rows_end; i' - left <= j <= i' + right. Causal is right == 0.
inline RowKeys row_keys(int32_t row, Document document, int32_t left, int32_t right) {
  RowKeys keys{row + document.keys_end - document.rows_end, document.keys_begin, document.keys_end};
  if (left != kNoLimit) keys.begin = larger(keys.begin, keys.aligned - left);
  if (right != kNoLimit) keys.end = smaller(keys.end, keys.aligned + right + 1);
  keys.end = larger(keys.end, keys.begin);
  return keys;
}

// A row outside every document.
inline RowKeys no_keys(int32_t row) { return {row, 0, 0}; }

// The extremes over the rows of a tile, or over its keys, of what decides visibility.
struct TileRows {
  int32_t begin_min = kLargest, begin_max = 0;  // of the key ranges
  int32_t end_min = kLargest, end_max = 0;
  int32_t segment_min = kLargest, segment_max = -1;

  void add(RowKeys keys) {
    if (keys.begin < keys.end) {
      begin_min = smaller(begin_min, keys.begin);
      end_max = larger(end_max, keys.end);
    }
    begin_max = larger(begin_max, keys.begin);
    end_min = smaller(end_min, keys.end);
  }
  void add_segment(int32_t id) {
    segment_min = smaller(segment_min, id);
    segment_max = larger(segment_max, id);
  }
};

struct TileKeys {
  int32_t begin, end;
  int32_t segment_min = kLargest, segment_max = -1;

  void add_segment(int32_t id) {
    segment_min = smaller(segment_min, id);
    segment_max = larger(segment_max, id);
  }
};

// None of a tile's pairs (row, key) is visible, some may be, or all are.
enum class Visibility { kNone, kSome, kAll };

inline Visibility both(Visibility a, Visibility b) {
  if (a == Visibility::kNone || b == Visibility::kNone) return Visibility::kNone;
  return a == Visibility::kAll ? b : a;
}

inline Visibility range_visibility(TileRows rows, TileKeys keys) {
  if (rows.end_max <= keys.begin || rows.begin_min >= keys.end) return Visibility::kNone;
  bool all = rows.begin_max <= keys.begin && keys.end <= rows.end_min;
  return all ? Visibility::kAll : Visibility::kSome;
}

// Ids that are equal and not negative see each other. Exact where a tile has one id only, and never
// wrong.
inline Visibility segment_visibility(TileRows rows, TileKeys keys) {
  bool apart = rows.segment_max < keys.segment_min || keys.segment_max < rows.segment_min;
  if (apart || rows.segment_max < 0 || keys.segment_max < 0) return Visibility::kNone;
  bool one = rows.segment_min == rows.segment_max && keys.segment_min == keys.segment_max;
  return one ? Visibility::kAll : Visibility::kSome;
}

// Rows row_begin .. row_end and keys of a tile, by the blocks that cover them. block(i, j) is the
// block mask.
template <typename Block>
inline Visibility block_visibility(int32_t row_begin, int32_t row_end, int32_t key_begin,
                                   int32_t key_end, int32_t block_rows, int32_t block_keys,
                                   Block block) {
  bool any = false, all = true;
  for (int32_t i = row_begin / block_rows; i * block_rows < row_end; ++i) {
    for (int32_t j = key_begin / block_keys; j * block_keys < key_end; ++j) {
      bool computed = block(i, j);
      any = any || computed;
      all = all && computed;
    }
  }
  if (!any) return Visibility::kNone;
  return all ? Visibility::kAll : Visibility::kSome;
}

}  // namespace mto
