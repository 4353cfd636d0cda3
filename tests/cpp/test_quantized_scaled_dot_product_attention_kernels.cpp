// Attention over quantized keys and values, in every instruction set: the bits of attention over
// the same keys and values decoded, with packed rows that end at an unmapped page.

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

void test_case(int64_t n_q, int64_t n_k, int bits, int group_size, FloatType type) {
  int64_t d = 2 * group_size, d_v = group_size, n_kv_heads = 2;
  // Values have the next number of bits; more than a bfloat16 holds.
  int value_bits = bits == 8 ? 1 : bits == 6 ? 8 : bits + 1;
  AttentionProblem problem({.n_heads = 4, .n_kv_heads = n_kv_heads, .n_q = n_q, .n_k = n_k, .d = d,
                            .d_v = d_v, .right = 0, .sinks = true});
  Packed keys(n_kv_heads * n_k, d, bits, group_size, type);
  Packed values(n_kv_heads * n_k, d_v, value_bits, group_size, type);
  auto p = problem.params();
  p.k.data = keys.values.data();
  p.v.data = values.values.data();
  auto expected = run(problem, p);
  p.k.data = p.v.data = nullptr;
  p.k_packed = keys.operand(n_k, d, bits, group_size, type);
  p.v_packed = values.operand(n_k, d_v, value_bits, group_size, type);
  auto name = std::string(isa_name(current_isa())) + " " + std::to_string(n_q) + " queries, " +
              std::to_string(bits) + " bits, group " + std::to_string(group_size) + " " +
              test::name_of(type);
  check(run(problem, p) == expected, name);
  check(!std::isnan(p.lse[0]), name + " gives no numbers");
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
        test_case(1, 300, bits, group_size, kTypes[i % 3]);
        test_case(40, 67, bits, group_size, kTypes[(i + 1) % 3]);
        ++i;
      }
    }
  }
  return test::finish("quantized_scaled_dot_product_attention kernels");
}
