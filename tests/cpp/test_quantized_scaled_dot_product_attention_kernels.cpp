// Attention over quantized keys and values, in every instruction set, with packed rows that end at
// an unmapped page. Float32 queries: the bits of attention over the same keys and values decoded.
// 16-bit ones: the definition, a row alone against the same row among others, threads.

#include "attention_problem.h"
#include "cpu/isa.h"
#include "cpu/thread_pool.h"
#include "formats/affine.h"

using namespace mto;
using test::AttentionCase;
using test::AttentionProblem;
using test::check;
using test::Guarded;

namespace {

// Rows of codes, their scales and biases, and their values as float32.
struct Packed {
  Packed(int64_t n_rows, int64_t d, int bits, int group_size, FloatType type)
      : codes(affine_row_bytes(n_rows * d, bits)),
        scales(n_rows * d / group_size * size_of(type)),
        biases(n_rows * d / group_size * size_of(type)),
        values(n_rows * d * sizeof(float)) {
    test::fill_bytes(codes);
    test::fill_exact(scales, type, -0.1f, 0.1f);
    test::fill_exact(biases, type, -1, 1);
    for (int64_t i = 0; i < n_rows * d; ++i) {
      auto code = static_cast<float>(test::code_at(codes.data<uint8_t>(), i, bits));
      auto scale = static_cast<float>(test::read(type, scales.data(), i / group_size));
      auto bias = static_cast<float>(test::read(type, biases.data(), i / group_size));
      values.data<float>()[i] = std::fma(code, scale, bias);
    }
  }

  AttentionPacked operand(int64_t n_keys, int64_t d, int bits, int group_size,
                          FloatType type) const {
    auto matrix = [&](const Guarded& data, int64_t row) {
      return AttentionOperand{data.data(), test::kNoOffset, n_keys * row, row, 1, type};
    };
    int64_t n_groups = d / group_size;
    return {matrix(codes, affine_row_bytes(d, bits)), matrix(scales, n_groups),
            matrix(biases, n_groups), bits, group_size};
  }

  Guarded codes, scales, biases, values;
};

std::vector<char> run(const AttentionProblem& problem, const AttentionParams& p) {
  std::memset(thread_scratch(1 << 23), 0xff, 1 << 23);
  std::vector<float> workspace(attention_workspace(p), NAN);
  attention_forward(p, workspace.data());
  auto out = static_cast<const char*>(p.out);
  std::vector<char> all(out, out + p.n_heads * p.n_q * p.d_v * size_of(p.type));
  all.insert(all.end(), problem.lse.data(), problem.lse.data() + problem.lse.n_bytes());
  return all;
}

// 16-bit results against the definition. Products of bytes may lose 2^-20 of a score's terms and
// of the greatest weight.
void check_outputs(const AttentionProblem& problem, const std::string& name) {
  const auto& c = problem.c;
  const auto& p = problem.params();
  double unit = c.type == FloatType::kFloat16 ? 0x1p-11 : 0x1p-8;
  for (int64_t h = 0; h < c.n_heads; ++h) {
    int64_t kv = h / (c.n_heads / c.n_kv_heads);
    for (int64_t i = 0; i < c.n_q; ++i) {
      std::vector<double> weight(c.n_k);
      double total = std::exp(problem.value(p.sinks, h, 0, 0));
      for (int64_t j = 0; j < c.n_k; ++j) {
        total += weight[j] = std::exp(problem.score(h, i, j).first);
      }
      int64_t at = h * c.n_q + i;
      double lse = std::log(total);
      check(std::fabs(p.lse[at] - lse) <= 0x1p-16 * (1 + std::fabs(lse) / 16), name + " lse");
      for (int64_t x = 0; x < c.d_v; ++x) {
        double sum = 0, size = 0;
        for (int64_t j = 0; j < c.n_k; ++j) {
          double term = weight[j] / total * problem.value(p.v, kv, j, x);
          sum += term;
          size += std::fabs(term);
        }
        double found = test::read(c.type, p.out, at * c.d_v + x);
        check(std::fabs(found - sum) <= unit * (std::fabs(sum) + size) + 0x1p-18, name + " out");
      }
    }
  }
}

// One row at a time: the same bits.
void check_rows_apart(const AttentionParams& p, const std::string& name) {
  int64_t bytes = p.d_v * size_of(p.type);
  std::vector<char> out(p.n_heads * bytes);
  std::vector<float> lse(p.n_heads);
  for (int64_t i = 0; i < p.n_q; i += 7) {
    auto part = p;
    part.n_q = 1;
    part.rows = p.rows + i;
    part.q.data = static_cast<const char*>(p.q.data) + i * p.q.row * size_of(p.type);
    part.out = out.data();
    part.lse = lse.data();
    std::vector<float> workspace(attention_workspace(part), NAN);
    attention_forward(part, workspace.data());
    for (int64_t h = 0; h < p.n_heads; ++h) {
      auto whole = static_cast<const char*>(p.out) + (h * p.n_q + i) * bytes;
      check(std::memcmp(whole, &out[h * bytes], bytes) == 0 && p.lse[h * p.n_q + i] == lse[h],
            name + " row " + std::to_string(i));
    }
  }
}

void test_case(int64_t n_q, int64_t n_k, int bits, int group_size, FloatType q_type,
               FloatType type) {
  int64_t d = 2 * group_size, d_v = group_size, n_kv_heads = 2;
  // Values have the next number of bits; more than a bfloat16 holds.
  int value_bits = bits == 8 ? 1 : bits == 6 ? 8 : bits + 1;
  AttentionProblem problem({.n_heads = 4,
                            .n_kv_heads = n_kv_heads,
                            .n_q = n_q,
                            .n_k = n_k,
                            .d = d,
                            .d_v = d_v,
                            .type = q_type,
                            .right = 0,
                            .sinks = true});
  Packed keys(n_kv_heads * n_k, d, bits, group_size, type);
  Packed values(n_kv_heads * n_k, d_v, value_bits, group_size, type);
  auto& dense = problem.grads.forward;
  dense.k.data = keys.values.data();
  dense.v.data = values.values.data();
  dense.k.type = dense.v.type = FloatType::kFloat32;
  auto packed = dense;
  packed.k.data = packed.v.data = nullptr;
  packed.k_packed = keys.operand(n_k, d, bits, group_size, type);
  packed.v_packed = values.operand(n_k, d_v, value_bits, group_size, type);
  auto name = std::string(isa_name(current_isa())) + " " + std::to_string(n_q) + " queries, " +
              std::to_string(bits) + " bits, group " + std::to_string(group_size) + " " +
              test::name_of(q_type) + " " + test::name_of(type);
  if (q_type == FloatType::kFloat32) {
    auto expected = run(problem, dense);
    check(run(problem, packed) == expected, name);
    check(!std::isnan(packed.lse[0]), name + " gives no numbers");
    return;
  }
  auto alone = run(problem, packed);
  check_outputs(problem, name);
  check_rows_apart(packed, name);
  set_num_threads(3);
  check(run(problem, packed) == alone, name + " depends on the thread count");
  set_num_threads(1);
}

}  // namespace

int main() {
  constexpr FloatType kTypes[] = {FloatType::kFloat32, FloatType::kFloat16, FloatType::kBFloat16};
  set_num_threads(1);
  for (Isa isa : available_isas()) {
    set_current_isa(isa);
    int i = 0;
    for (int bits : kAffineBits) {
      for (int group_size : kAffineGroupSizes) {
        for (FloatType q_type : {kTypes[0], kTypes[1 + i % 2]}) {
          test_case(1, 300, bits, group_size, q_type, kTypes[i % 3]);
          test_case(20, 67, bits, group_size, q_type, kTypes[(i + 1) % 3]);
        }
        ++i;
      }
    }
  }
  return test::finish("quantized_scaled_dot_product_attention kernels");
}
