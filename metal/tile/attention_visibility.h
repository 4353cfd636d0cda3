#pragma once

#include <metal_stdlib>

#include "tile/attention_options.h"

// What a row sees, and which tiles of (rows, keys) need no visit.

namespace mto {

// What a query row is, beside its operand. Small enough to be kept in threadgroup memory, one a row
// of a tile.
struct AttentionRow {
  int index;
  RowKeys keys;
  int segment;
};

// `rows` and `q_segments` are the buffers; a row of no document has no keys. Rows before `n_q`
// only.
inline AttentionRow attention_row(constant AttentionParams& params,
                                  thread const AttentionStarts& starts, const device RowKeys* rows,
                                  const device int* q_segments, int i) {
  AttentionRow row;
  row.index = i;
  row.segment = 0;
  if (attention_has_documents) {
    row.keys = rows[i];
  } else {
    Document all{params.n_q, 0, params.n_k};
    row.keys = row_keys(i, all, params.window_left, params.window_right);
  }
  if (attention_has_segments) {
    row.segment = q_segments[head_of(params, starts, kAttentionQSegments, 0) +
                             i * params.operands[kAttentionQSegments].row];
  }
  return row;
}

// A row past the end: it sees nothing.
inline AttentionRow no_row(int i) {
  AttentionRow row;
  row.index = i;
  row.keys = no_keys(i);
  row.segment = -1;
  return row;
}

// Lengths that are no list of documents make everything NaN; every row says so.
inline bool bad_documents(const device RowKeys* rows) {
  return attention_has_documents && rows[0].end < 0;
}

// Of the rows that lanes hold, one each, where `here`. In all lanes.
inline TileRows tile_rows(AttentionRow row, bool here) {
  TileRows tile;
  if (here) {
    tile.add(row.keys);
    tile.add_segment(row.segment);
  }
  tile.begin_min = metal::simd_min(tile.begin_min);
  tile.begin_max = metal::simd_max(tile.begin_max);
  tile.end_min = metal::simd_min(tile.end_min);
  tile.end_max = metal::simd_max(tile.end_max);
  if (attention_has_segments) {
    tile.segment_min = metal::simd_min(tile.segment_min);
    tile.segment_max = metal::simd_max(tile.segment_max);
  }
  return tile;
}

// Keys begin .. end. `segments` are those of the batch element, `stride` apart. In all lanes.
inline TileKeys tile_keys(int begin, int end, const device int* segments, int64_t stride,
                          uint lane) {
  TileKeys tile;
  tile.begin = begin;
  tile.end = end;
  if (attention_has_segments) {
    for (int j = begin + int(lane); j < end; j += 32) tile.add_segment(segments[j * stride]);
    tile.segment_min = metal::simd_min(tile.segment_min);
    tile.segment_max = metal::simd_max(tile.segment_max);
  }
  return tile;
}

// The block mask of one batch element and query head.
struct AttentionBlocks {
  const device uchar* mask;
  int64_t row, column;
  int block_rows, block_keys;
};

inline AttentionBlocks attention_blocks(constant AttentionParams& params,
                                        thread const AttentionStarts& starts, int h,
                                        const device uchar* block_mask) {
  AttentionBlocks blocks;
  blocks.mask = block_mask;
  if (attention_has_blocks) blocks.mask += head_of(params, starts, kAttentionBlockMask, h);
  blocks.row = params.operands[kAttentionBlockMask].row;
  blocks.column = params.operands[kAttentionBlockMask].column;
  blocks.block_rows = params.block_rows;
  blocks.block_keys = params.block_keys;
  return blocks;
}

inline bool computed(thread const AttentionBlocks& blocks, int i, int j) {
  return blocks.mask[i / blocks.block_rows * blocks.row + j / blocks.block_keys * blocks.column];
}

// Rows row_begin .. row_end against the keys of a tile. An array mask is not asked.
inline Visibility tile_visibility(thread const AttentionBlocks& blocks, TileRows rows,
                                  TileKeys keys, int row_begin, int row_end) {
  Visibility result = range_visibility(rows, keys);
  if (attention_has_segments) result = both(result, segment_visibility(rows, keys));
  if (attention_has_blocks && result != Visibility::kNone) {
    auto block = [&](int i, int j) {
      return bool(blocks.mask[i * blocks.row + j * blocks.column]);
    };
    result = both(result, block_visibility(row_begin, row_end, keys.begin, keys.end,
                                           blocks.block_rows, blocks.block_keys, block));
  }
  return result;
}

// By everything but an array mask. `k_segment` is the key's.
inline bool visible(thread const AttentionBlocks& blocks, AttentionRow row, int j, int k_segment) {
  bool seen = row.keys.begin <= j && j < row.keys.end;
  if (attention_has_segments) seen = seen && row.segment == k_segment && k_segment >= 0;
  if (attention_has_blocks) seen = seen && computed(blocks, row.index, j);
  return seen;
}

}  // namespace mto
