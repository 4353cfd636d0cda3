// How the Metal kernels for few queries cut a call: what has to hold for every shape, and choices.

#include "harness.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_few_queries_metal_variant.h"

using mto::few_queries_variant;
using Shape = mto::FewQueriesShape;
using test::check;

namespace {

void calls() {
  check(mto::are_few_queries(1, 1), "one query");
  check(mto::are_few_queries(1, 32) && !mto::are_few_queries(1, 33), "32 rows");
  check(mto::are_few_queries(8, 4) && !mto::are_few_queries(8, 5), "8 queries of 4 heads");
  check(!mto::are_few_queries(9, 1), "9 queries are a tile");
}

void check_shape(const Shape& shape) {
  auto variant = few_queries_variant(shape);
  std::string what = std::to_string(shape.n_rows) + " rows of " + std::to_string(shape.d) + ", " +
                     std::to_string(shape.n_keys) + " keys: ";
  int64_t columns = variant.key_columns + variant.value_columns;
  check(variant.key_columns >= shape.d && variant.value_columns >= shape.d_v, what + "columns");
  check(variant.rows == 1 || variant.rows * columns <= 64 * 32, what + "registers");
  check(variant.rows < 2 * shape.n_rows, what + "rows that are not there");
  check(variant.split_keys % 256 == 0 && variant.n_splits >= 1, what + "whole turns");
  check(variant.n_splits <= mto::kFewQueriesMaxSplits, what + "the merge has room");
  check(variant.n_splits * variant.split_keys >= shape.n_keys, what + "all keys");
  check(shape.n_keys == 0 || (variant.n_splits - 1) * variant.split_keys < shape.n_keys,
        what + "no split is empty");
  int64_t merged = 8 * variant.rows * shape.d_v, read = variant.split_keys * shape.key_bytes;
  check(variant.n_splits == 1 || 20 * merged <= read, what + "merging is cheap");
}

void every_shape() {
  for (int64_t n_heads : {1, 2, 8, 32, 500}) {
    for (int64_t n_rows : {1, 3, 8, 32, 900}) {
      for (int64_t n_keys : {0, 1, 255, 257, 4096, 100000}) {
        for (int64_t d : {1, 64, 80, 128, 192, 256, 512, 576}) {
          for (int64_t half_bytes : {1, 4, 8, 16}) {
            check_shape({n_heads, n_rows, n_keys, d, d, std::max<int64_t>(half_bytes * d / 2, 1)});
          }
        }
      }
    }
  }
}

void choices() {
  // Llama 3 8B: 8 KV heads of 4 rows, 128 columns of 16 bits.
  auto llama = few_queries_variant({8, 4, 8192, 128, 128, 512});
  check(llama.rows == 4 && llama.n_splits == 16 && llama.split_keys == 512, "16 splits of 512");
  // Its 4-bit cache: a fourth of the bytes, so longer splits.
  auto packed = few_queries_variant({8, 4, 8192, 128, 128, 144});
  check(packed.n_splits == 11 && packed.split_keys == 768, "11 splits of 768");
  // Enough heads: no split.
  check(few_queries_variant({256, 4, 8192, 128, 128, 512}).n_splits == 1, "256 heads");
  check(few_queries_variant({1, 1, 200, 64, 64, 256}).n_splits == 1, "a short cache");
}

}  // namespace

int main() {
  calls();
  every_shape();
  choices();
  return test::finish("variants of attention of few queries in Metal");
}
