#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_schedule.h"

#include <algorithm>

#include "common/integers.h"
#include "cpu/thread_pool.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_kernels.h"

namespace mto {
namespace {

// So few rows (of a KV head) leave most of the time to reading keys and values: tiles of keys are
// done apart, so that all cores have work even for one head.
constexpr int64_t kFewRows = 32;

struct ForwardPlan {
  explicit ForwardPlan(const AttentionParams& p)
      : heads(p.n_batch * p.n_kv_heads),
        rows(p.group() * p.n_q),
        tiles(ceil_div(p.n_k, kAttentionTile)),
        apart(rows > 0 && rows <= kFewRows && tiles > 1),
        part_floats(attention_sums_floats(rows, p.d_v)) {}

  int64_t heads, rows, tiles;
  bool apart;
  int64_t part_floats;
};

// Tiles of keys of one head may be shared out, each part with sums of d_q of its own.
constexpr int64_t kGradTasks = 16;
constexpr int64_t kMaxGradParts = 8;
constexpr int64_t kTaskRows = 64;

struct BackwardPlan {
  explicit BackwardPlan(const AttentionParams& p)
      : heads(p.n_batch * p.n_kv_heads),
        head_rows(p.group() * p.n_q),
        head_blocks(ceil_div(head_rows, kAttentionGradRows)),
        rows(heads * head_rows),
        tiles(ceil_div(p.n_k, kAttentionTile)),
        n_parts(std::clamp<int64_t>(ceil_div(kGradTasks, std::max<int64_t>(heads, 1)), 1,
                                    std::clamp<int64_t>(tiles, 1, kMaxGradParts))),
        part_floats(rows * attention_d_q_stride(p.d)),
        part_bytes(heads * head_blocks),
        alibi_floats(p.n_batch * p.n_heads * tiles) {}

  // The workspace: constants, parts of d_q, parts of d_alibi, bytes that tell which rows parts
  // have.
  int64_t d_q() const { return attention_padded(rows); }
  int64_t d_alibi() const { return d_q() + n_parts * part_floats; }
  static constexpr int64_t kFloatBytes = sizeof(float);
  int64_t touched() const { return d_alibi() + alibi_floats; }
  int64_t n_floats() const { return touched() + ceil_div(n_parts * part_bytes, kFloatBytes); }

  int64_t heads, head_rows, head_blocks, rows, tiles, n_parts, part_floats, part_bytes,
      alibi_floats;
};

// How many pairs of a query head's rows and the keys of each tile are visible by the ranges of
// rows, and what a tile costs without any.
std::vector<int64_t> tile_costs(const AttentionParams& p, int64_t n_tiles) {
  constexpr int64_t kFixedCost = 32 * kAttentionTile;
  std::vector<int64_t> costs(n_tiles, kFixedCost), whole(n_tiles + 1);
  for (int64_t i = 0; i < p.n_q; ++i) {
    auto keys = p.rows[i];
    int64_t begin = keys.begin, end = std::min<int64_t>(keys.end, p.n_k);
    if (begin >= end) continue;
    int64_t first = begin / kAttentionTile, last = (end - 1) / kAttentionTile;
    if (first == last) {
      costs[first] += end - begin;
      continue;
    }
    costs[first] += (first + 1) * kAttentionTile - begin;
    costs[last] += end - last * kAttentionTile;
    whole[first + 1] += kAttentionTile;
    whole[last] -= kAttentionTile;
  }
  int64_t seen_whole = 0;
  for (int64_t tile = 0; tile < n_tiles; ++tile) costs[tile] += seen_whole += whole[tile];
  return costs;
}

// Parts of tiles that follow each other, so that where there is a window a part has few rows; of
// about equal cost.
std::vector<AttentionRange> cut_tiles(const AttentionParams& p, const BackwardPlan& plan) {
  auto costs = tile_costs(p, plan.tiles);
  int64_t total = 0, cost = 0, tile = 0;
  for (int64_t c : costs) total += c;
  std::vector<AttentionRange> parts;
  for (int64_t part = 1; part <= plan.n_parts; ++part) {
    int64_t begin = tile;
    while (tile < plan.tiles && (part == plan.n_parts || cost * plan.n_parts < total * part)) {
      cost += costs[tile++];
    }
    parts.push_back({begin, tile});
  }
  return parts;
}

void sum_alibi(const AttentionGradParams& g, const BackwardPlan& plan, const float* parts) {
  const auto& p = g.forward;
  int64_t group = p.group();
  for (int64_t h = 0; h < p.n_batch * p.n_heads; ++h) {
    const float* head = parts + h / group * plan.tiles * group + h % group;
    g.d_alibi[h] = 0;
    for (int64_t tile = 0; tile < plan.tiles; ++tile) g.d_alibi[h] += head[tile * group];
  }
}

void mask_backward(const AttentionGradParams& g, const AttentionGradMask& mask,
                   const float* constants) {
  const auto& kernels = scaled_dot_product_attention_kernels(current_isa());
  int64_t row_tiles = ceil_div(mask.n_rows, kTaskRows);
  int64_t key_tiles = ceil_div(mask.n_keys, kAttentionTile);
  int64_t n_tiles = row_tiles * key_tiles;
  parallel_for(mask.batches.size() * mask.n_heads * n_tiles, [&](int64_t task) {
    int64_t head = task / n_tiles, row = task % n_tiles / key_tiles * kTaskRows;
    int64_t key = task % key_tiles * kAttentionTile;
    kernels.mask_grad(g, constants, mask.batches[head / mask.n_heads], head % mask.n_heads,
                      {row, std::min(row + kTaskRows, mask.n_rows)},
                      {key, std::min(key + kAttentionTile, mask.n_keys)});
  });
}

}  // namespace

int64_t attention_workspace(const AttentionParams& p) {
  ForwardPlan plan(p);
  return plan.apart ? plan.heads * plan.tiles * plan.part_floats : 0;
}

void attention_forward(const AttentionParams& p, float* workspace) {
  const auto& kernels = scaled_dot_product_attention_kernels(current_isa());
  ForwardPlan plan(p);
  if (plan.apart) {
    AttentionRange rows{0, plan.rows};
    auto part = [&](int64_t head, int64_t tile) {
      return workspace + (head * plan.tiles + tile) * plan.part_floats;
    };
    parallel_for(plan.heads * plan.tiles, [&](int64_t task) {
      int64_t head = task / plan.tiles, tile = task % plan.tiles;
      kernels.forward_tile(p, head / p.n_kv_heads, head % p.n_kv_heads, rows, tile,
                           part(head, tile));
    });
    parallel_for(plan.heads, [&](int64_t head) {
      kernels.merge(p, head / p.n_kv_heads, head % p.n_kv_heads, rows, part(head, 0), plan.tiles);
    });
    return;
  }
  int64_t blocks = ceil_div(plan.rows, kMaxAttentionRows);
  parallel_for(plan.heads * blocks, [&](int64_t task) {
    // Late rows first: where causal they have the most keys.
    int64_t head = task % plan.heads, block = blocks - 1 - task / plan.heads;
    int64_t row = block * kMaxAttentionRows;
    kernels.forward(p, head / p.n_kv_heads, head % p.n_kv_heads,
                    {row, std::min(row + kMaxAttentionRows, plan.rows)});
  });
}

int64_t attention_grad_workspace(const AttentionGradParams& g) {
  return BackwardPlan(g.forward).n_floats();
}

void attention_backward(const AttentionGradParams& g, const AttentionGradMask& mask,
                        float* workspace) {
  const auto& p = g.forward;
  const auto& kernels = scaled_dot_product_attention_kernels(current_isa());
  BackwardPlan plan(p);
  float* constants = workspace;
  float* d_q = workspace + plan.d_q();
  float* d_alibi = workspace + plan.d_alibi();
  auto touched = reinterpret_cast<uint8_t*>(workspace + plan.touched());
  auto parts = cut_tiles(p, plan);
  int64_t stride = attention_d_q_stride(p.d);
  parallel_for(p.n_batch * p.n_heads, [&](int64_t head) {
    kernels.grad_constants(g, head / p.n_heads, head % p.n_heads, {0, p.n_q}, constants);
  });
  parallel_for(plan.heads * plan.n_parts, [&](int64_t task) {
    int64_t head = task / plan.n_parts, part = task % plan.n_parts;
    AttentionQueryGrads own{d_q + part * plan.part_floats + head * plan.head_rows * stride,
                            touched + part * plan.part_bytes + head * plan.head_blocks};
    kernels.backward(g, constants, head / p.n_kv_heads, head % p.n_kv_heads, parts[part], own,
                     d_alibi + head * plan.tiles * p.group());
  });
  parallel_for(plan.heads * plan.head_blocks, [&](int64_t task) {
    int64_t head = task / plan.head_blocks, row = task % plan.head_blocks * kAttentionGradRows;
    int64_t end = std::min(row + kAttentionGradRows, plan.head_rows), at = head * plan.head_rows;
    kernels.write_d_q(g, {at + row, at + end}, {d_q, touched + task}, plan.n_parts,
                      plan.part_floats, plan.part_bytes);
  });
  if (g.d_alibi) sum_alibi(g, plan, d_alibi);
  if (g.d_mask) mask_backward(g, mask, constants);
}

}  // namespace mto
