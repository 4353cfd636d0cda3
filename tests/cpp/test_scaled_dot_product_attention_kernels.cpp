// The attention kernels of every instruction set: against a double reference, with operands that
// end at an unmapped page and memory that starts as NaN; a row alone against the same row among
// others, one thread against three, and quantized keys against the same keys decoded, bit for bit.

#include "attention_problem.h"
#include "cpu/isa.h"
#include "cpu/thread_pool.h"
#include "formats/affine.h"

using namespace mto;
using test::AttentionCase;
using test::AttentionProblem;
using test::check;

namespace {

constexpr double kUnit = 0x1p-24;

double epsilon(FloatType type) {
  return type == FloatType::kFloat32 ? kUnit : type == FloatType::kFloat16 ? 0x1p-11 : 0x1p-8;
}

std::vector<float> poisoned(int64_t n) {
  std::memset(thread_scratch(1 << 23), 0xff, 1 << 23);
  return std::vector<float>(n, NAN);
}

void run_forward(const AttentionParams& p) {
  auto workspace = poisoned(attention_workspace(p));
  attention_forward(p, workspace.data());
}

void run_backward(const AttentionProblem& problem) {
  auto workspace = poisoned(attention_grad_workspace(problem.grads));
  attention_backward(problem.grads, problem.mask_shape, workspace.data());
}

// What a term of a sum may be off by, relative to its size: rounding of products of `depth` terms
// that make scores of magnitude 10 or less, of a sum over n, and of the terms to bfloat16.
double slack(FloatType type, int64_t depth, int64_t n) {
  double rounded = type == FloatType::kBFloat16 ? 0x1p-8 : 0;
  return kUnit * (16.0 * (depth + 40) + 2.0 * n) + rounded;
}

// Sums of terms, and of their sizes.
struct Sum {
  double value = 0, size = 0;
  void add(double term) {
    value += term;
    size += std::fabs(term);
  }
};

void check_sum(FloatType type, const void* data, int64_t at, const Sum& sum, double slack,
               const std::string& what) {
  double found = test::read(type, data, at);
  double error = std::fabs(found - sum.value);
  double smallest = type == FloatType::kFloat16 ? 0x1p-25 : 0;  // half a sub-normal step
  bool ok = error <= sum.size * slack + std::max(std::fabs(sum.value) * epsilon(type), smallest);
  check(ok, what + " at " + std::to_string(at) + ": " + std::to_string(found) + " for " +
                std::to_string(sum.value));
}

// Weights and derivatives of one query head.
struct Head {
  std::vector<double> weight, d_score, slope;
};

Head check_head(const AttentionProblem& problem, int64_t h, const std::string& name) {
  const auto& c = problem.c;
  const auto& p = problem.params();
  int64_t kv = h / (c.n_heads / c.n_kv_heads);
  Head head;
  for (auto* v : {&head.weight, &head.d_score, &head.slope}) v->assign(c.n_q * c.n_k, 0.0);
  double relative = slack(c.type, c.d, c.n_k);
  for (int64_t i = 0; i < c.n_q; ++i) {
    double *weight = &head.weight[i * c.n_k], *d_score = &head.d_score[i * c.n_k], total = 0;
    for (int64_t j = 0; j < c.n_k; ++j) {
      auto [s, slope] = problem.score(h, i, j);
      weight[j] = std::exp(s);
      head.slope[i * c.n_k + j] = slope;
      total += weight[j];
    }
    if (c.sinks) total += std::exp(problem.value(p.sinks, h, 0, 0));
    int64_t at = h * c.n_q + i;
    bool same =
        total == 0 ? p.lse[at] == -INFINITY : std::fabs(p.lse[at] - std::log(total)) <= relative;
    check(same, name + " lse at " + std::to_string(at));
    for (int64_t j = 0; j < c.n_k; ++j) weight[j] = total == 0 ? 0 : weight[j] / total;
    for (int64_t x = 0; x < c.d_v; ++x) {
      Sum sum;
      for (int64_t j = 0; j < c.n_k; ++j) sum.add(weight[j] * problem.value(p.v, kv, j, x));
      check_sum(c.type, p.out, at * c.d_v + x, sum, relative, name + " out");
    }
    double constant = -problem.value(problem.grads.d_lse, h, i, 0);
    auto product = [&](const AttentionOperand& o, int64_t head, int64_t row) {
      double sum = 0;
      for (int64_t x = 0; x < c.d_v; ++x) {
        sum += problem.value(problem.grads.d_out, h, i, x) * problem.value(o, head, row, x);
      }
      return sum;
    };
    constant += product(problem.grads.out, h, i);
    for (int64_t j = 0; j < c.n_k; ++j) {
      d_score[j] = weight[j] * (product(p.v, kv, j) - constant);
    }
  }
  return head;
}

// Terms that cancel in d_score are up to this much larger than it.
double further_slack(const AttentionCase& c, int64_t n) {
  constexpr double kCancelled = 64;
  return kCancelled * slack(FloatType::kFloat32, c.d + c.d_v, n) + slack(c.type, 0, 0);
}

void check_row_grads(const AttentionProblem& problem, const std::vector<Head>& heads,
                     const std::string& name) {
  const auto& c = problem.c;
  const auto& g = problem.grads;
  double relative = further_slack(c, c.n_k);
  for (int64_t h = 0; h < c.n_heads; ++h) {
    int64_t kv = h / (c.n_heads / c.n_kv_heads);
    Sum alibi;
    for (int64_t i = 0; i < c.n_q; ++i) {
      const double *d_score = &heads[h].d_score[i * c.n_k], *slope = &heads[h].slope[i * c.n_k];
      for (int64_t j = 0; j < c.n_k; ++j) {
        alibi.add(-d_score[j] * std::abs(problem.rows[i].aligned - static_cast<double>(j)));
      }
      for (int64_t x = 0; x < c.d; ++x) {
        Sum sum;
        for (int64_t j = 0; j < c.n_k; ++j) {
          sum.add(g.forward.scale * d_score[j] * slope[j] * problem.value(g.forward.k, kv, j, x));
        }
        check_sum(c.type, g.d_q, (h * c.n_q + i) * c.d + x, sum, relative, name + " d_q");
      }
    }
    if (c.alibi) check_sum(FloatType::kFloat32, g.d_alibi, h, alibi, relative, name + " d_alibi");
  }
  for (int64_t at = 0; g.d_mask && at < c.n_q * c.n_k; ++at) {
    Sum sum;
    for (const auto& head : heads) sum.add(head.d_score[at]);
    check_sum(FloatType::kFloat32, g.d_mask.data, at, sum, relative, name + " d_mask");
  }
}

void check_key_grads(const AttentionProblem& problem, const std::vector<Head>& heads,
                     const std::string& name) {
  const auto& c = problem.c;
  const auto& g = problem.grads;
  int64_t group = c.n_heads / c.n_kv_heads;
  double relative = further_slack(c, c.n_q * group);
  for (int64_t kv = 0; kv < c.n_kv_heads; ++kv) {
    for (int64_t j = 0; j < c.n_k; ++j) {
      std::vector<Sum> d_k(c.d), d_v(c.d_v);
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        for (int64_t i = 0; i < c.n_q; ++i) {
          int64_t at = i * c.n_k + j;
          double d_product = g.forward.scale * heads[h].d_score[at] * heads[h].slope[at];
          for (int64_t x = 0; x < c.d; ++x) {
            d_k[x].add(d_product * problem.value(g.forward.q, h, i, x));
          }
          for (int64_t x = 0; x < c.d_v; ++x) {
            d_v[x].add(heads[h].weight[at] * problem.value(g.d_out, h, i, x));
          }
        }
      }
      int64_t row = kv * c.n_k + j;
      for (int64_t x = 0; x < c.d; ++x) {
        check_sum(c.type, g.d_k, row * c.d + x, d_k[x], relative, name + " d_k");
      }
      for (int64_t x = 0; x < c.d_v; ++x) {
        check_sum(c.type, g.d_v, row * c.d_v + x, d_v[x], relative, name + " d_v");
      }
    }
  }
}

std::vector<char> contents(const AttentionProblem& problem) {
  std::vector<char> all(problem.lse.data(), problem.lse.data() + problem.lse.n_bytes());
  for (const auto& b : problem.buffers) all.insert(all.end(), b.data(), b.data() + b.n_bytes());
  return all;
}

// Every row alone, and a few together: other kernels and other tiles, the same bits.
void check_rows_apart(const AttentionProblem& problem, const std::string& name) {
  const auto& c = problem.c;
  const auto& p = problem.params();
  for (int64_t n : {int64_t{1}, int64_t{5}}) {
    for (int64_t i = 0; i + n <= c.n_q; i += std::max<int64_t>(n, c.n_q / 9)) {
      auto part = p;
      auto skip = [&](AttentionOperand& o, int64_t element) {
        if (o) o.data = static_cast<const char*>(o.data) + i * o.row * element;
      };
      part.n_q = n;
      part.rows = p.rows + i;
      skip(part.q, size_of(c.type));
      skip(part.mask, c.mask == MaskKind::kBool ? 1 : size_of(c.type));
      skip(part.q_segments, 4);
      std::vector<char> out(c.n_heads * n * c.d_v * size_of(c.type), 0x7f);
      std::vector<float> lse(c.n_heads * n, NAN);
      part.out = out.data();
      part.lse = lse.data();
      run_forward(part);
      int64_t bytes = c.d_v * size_of(c.type);
      for (int64_t h = 0; h < c.n_heads; ++h) {
        auto whole = static_cast<const char*>(p.out) + (h * c.n_q + i) * bytes;
        bool same = std::memcmp(whole, &out[h * n * bytes], n * bytes) == 0 &&
                    std::memcmp(p.lse + h * c.n_q + i, &lse[h * n], n * sizeof(float)) == 0;
        check(same, name + " row " + std::to_string(i) + " of " + std::to_string(n));
      }
    }
  }
}

void test_case(const AttentionCase& c) {
  auto name = std::string(isa_name(current_isa())) + " " + c.name();
  AttentionProblem problem(c);
  set_num_threads(1);
  run_forward(problem.params());
  if (!c.blocks) check_rows_apart(problem, name);
  run_backward(problem);
  auto alone = contents(problem);
  set_num_threads(3);
  run_forward(problem.params());
  run_backward(problem);
  check(alone == contents(problem), name + " depends on the thread count");
  std::vector<Head> heads;
  for (int64_t h = 0; h < c.n_heads; ++h) heads.push_back(check_head(problem, h, name));
  check_row_grads(problem, heads, name);
  check_key_grads(problem, heads, name);
  for (const auto& b : problem.buffers) check(b.intact(), name + " writes before a buffer");
}

}  // namespace

int main() {
  constexpr auto kF32 = FloatType::kFloat32, kF16 = FloatType::kFloat16;
  constexpr auto kBF16 = FloatType::kBFloat16;
  constexpr auto kBool = MaskKind::kBool, kAdditive = MaskKind::kAdditive;
  for (Isa isa : available_isas()) {
    set_current_isa(isa);
    for (FloatType type : {kF32, kF16, kBF16}) {
      test_case({.n_heads = 2,
                 .n_kv_heads = 1,
                 .n_q = 70,
                 .n_k = 70,
                 .d = 64,
                 .d_v = 64,
                 .type = type,
                 .right = 0});
      test_case(
          {.n_heads = 3, .n_kv_heads = 3, .n_q = 1, .n_k = 600, .d = 40, .d_v = 72, .type = type});
      test_case({.n_heads = 4,
                 .n_kv_heads = 2,
                 .n_q = 33,
                 .n_k = 301,
                 .d = 16,
                 .d_v = 8,
                 .type = type,
                 .left = 20,
                 .right = 5,
                 .softcap = 2,
                 .mask = kAdditive,
                 .alibi = true,
                 .sinks = true,
                 .segments = true});
    }
    test_case({.n_heads = 1,
               .n_kv_heads = 1,
               .n_q = 130,
               .n_k = 290,
               .d = 7,
               .d_v = 33,
               .type = kF32,
               .left = 63,
               .right = 0,
               .mask = kBool,
               .blocks = true});
    test_case({.n_heads = 2,
               .n_kv_heads = 2,
               .n_q = 90,
               .n_k = 40,
               .d = 20,
               .d_v = 5,
               .type = kBF16,
               .right = 0,
               .sinks = true});
    test_case({.n_heads = 2, .n_kv_heads = 1, .n_q = 5, .n_k = 0, .d = 8, .d_v = 8});
    test_case({.n_heads = 2, .n_kv_heads = 1, .n_q = 3, .n_k = 9, .d = 0, .d_v = 576});
    test_case({.n_heads = 1,
               .n_kv_heads = 1,
               .n_q = 2,
               .n_k = 265,
               .d = 576,
               .d_v = 96,
               .type = kF16,
               .blocks = true});
  }
  return test::finish("scaled_dot_product_attention kernels");
}
