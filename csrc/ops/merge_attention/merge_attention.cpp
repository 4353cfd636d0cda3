#include "ops/merge_attention/merge_attention.h"

#include <limits>

namespace mto {
namespace {

constexpr const char* kOp = "merge_attention";

void check(const std::vector<mx::array>& outs, const std::vector<mx::array>& lses) {
  if (outs.empty()) fail(kOp, "outs", "have at least one array", "none");
  if (outs.size() != lses.size()) {
    fail(kOp, "lses", "be as many as outs, " + std::to_string(outs.size()),
         std::to_string(lses.size()));
  }
  const auto& shape = outs[0].shape();
  if (shape.empty()) fail(kOp, "outs", "have at least 1 dimension", "a scalar");
  mx::Shape rows(shape.begin(), shape.end() - 1);
  for (const auto& out : outs) {
    if (out.shape() != shape) {
      fail(kOp, "outs", "have one shape, " + to_string(shape), to_string(out.shape()));
    }
    if (!mx::issubdtype(out.dtype(), mx::floating)) {
      fail(kOp, "outs", "have a floating dtype", to_string(out.dtype()));
    }
  }
  for (const auto& lse : lses) {
    if (lse.shape() != rows) {
      fail(kOp, "lses", "have the shape of the rows of outs, " + to_string(rows),
           to_string(lse.shape()));
    }
    if (!mx::issubdtype(lse.dtype(), mx::floating)) {
      fail(kOp, "lses", "have a floating dtype", to_string(lse.dtype()));
    }
  }
}

}  // namespace

std::pair<mx::array, mx::array> merge_attention(const std::vector<mx::array>& outs,
                                                const std::vector<mx::array>& lses,
                                                mx::StreamOrDevice s) {
  check(outs, lses);
  auto dtype = mx::result_type(outs);
  auto real = dtype == mx::float64 ? mx::float64 : mx::float32;
  auto number = [&](double value) { return mx::array(value, real); };
  auto logits = mx::astype(mx::stack(lses, 0, s), real, s);
  // The offset cancels, so it has no gradient; it is finite where a row has no key at all.
  auto top = mx::max(logits, 0, true, s);
  top = mx::stop_gradient(mx::where(mx::isinf(top, s), number(0), top, s), s);
  auto weights = mx::exp(mx::subtract(logits, top, s), s);
  auto total = mx::sum(weights, 0, false, s);
  auto none = mx::equal(total, number(0), s);
  total = mx::where(none, number(1), total, s);
  auto values = mx::astype(mx::stack(outs, 0, s), real, s);
  auto weighted = mx::multiply(mx::expand_dims(weights, -1, s), values, s);
  auto out = mx::divide(mx::sum(weighted, 0, false, s), mx::expand_dims(total, -1, s), s);
  auto lse = mx::add(mx::squeeze(top, 0, s), mx::log(total, s), s);
  lse = mx::where(none, number(-std::numeric_limits<float>::infinity()), lse, s);
  return {mx::astype(out, dtype, s), mx::astype(lse, mx::float32, s)};
}

}  // namespace mto
