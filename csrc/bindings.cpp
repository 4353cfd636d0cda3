#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "bindings_metal.h"
#include "common/counters.h"
#include "cpu/isa.h"
#include "cpu/thread_pool.h"
#include "ops/dequantize/dequantize.h"
#include "ops/merge_attention/merge_attention.h"
#include "ops/quantize/quantize.h"
#include "ops/quantized_matmul/quantized_matmul.h"
#include "ops/quantized_scaled_dot_product_attention/quantized_scaled_dot_product_attention.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_checks.h"
#include "testing/callback.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

void bind_ops(nb::module_& m) {
  m.def("quantize", &mto::quantize, "w"_a, "group_size"_a.none(), "bits"_a.none(), "mode"_a,
        "global_scale"_a.none(), "route"_a.none(), "force_fused"_a, "stream"_a.none());
  m.def("dequantize", &mto::dequantize, "w"_a, "scales"_a.none(), "biases"_a.none(),
        "group_size"_a.none(), "bits"_a.none(), "mode"_a, "global_scale"_a.none(), "dtype"_a.none(),
        "route"_a.none(), "force_fused"_a, "stream"_a.none());
  m.def("quantized_matmul", &mto::quantized_matmul, "x"_a, "w"_a, "scales"_a.none(),
        "biases"_a.none(), "transpose"_a, "group_size"_a.none(), "bits"_a.none(), "mode"_a,
        "global_scale"_a.none(), "precision"_a.none(), "route"_a.none(), "force_fused"_a,
        "stream"_a.none());
  m.def("merge_attention", &mto::merge_attention, "outs"_a, "lses"_a, "stream"_a.none());
}

void bind_attention(nb::module_& m) {
  nb::class_<mto::AttentionOptions>(m, "AttentionOptions")
      .def(
          nb::init<std::optional<mto::Mask>, std::optional<mto::mx::array>,
                   std::optional<mto::Window>, std::optional<double>, std::optional<mto::mx::array>,
                   std::optional<mto::ForEach>, std::optional<mto::ForEach>,
                   std::optional<mto::mx::array>, std::optional<std::pair<int64_t, int64_t>>, bool,
                   std::optional<std::string>, std::optional<std::string>, bool>(),
          "mask"_a.none(), "sinks"_a.none(), "window"_a.none(), "softcap"_a.none(),
          "alibi"_a.none(), "segment_ids"_a.none(), "cu_seqlens"_a.none(), "block_mask"_a.none(),
          "block_size"_a.none(), "return_lse"_a, "precision"_a.none(), "route"_a.none(),
          "force_fused"_a);
  m.def("scaled_dot_product_attention", &mto::scaled_dot_product_attention, "q"_a, "k"_a, "v"_a,
        "scale"_a, "options"_a, "stream"_a.none());
  nb::class_<mto::QuantizedOperand>(m, "QuantizedOperand")
      .def(nb::init<std::vector<mto::mx::array>, std::optional<int>, std::optional<int>,
                    std::string>(),
           "arrays"_a, "group_size"_a.none(), "bits"_a.none(), "mode"_a);
  m.def("quantized_scaled_dot_product_attention", &mto::quantized_scaled_dot_product_attention,
        "q"_a, "k"_a, "v"_a, "scale"_a, "options"_a, "stream"_a.none());
  m.def("supports_attention", &mto::unsupported_attention, "backend"_a, "dtype"_a, "d"_a, "d_v"_a,
        "The reason why no kernel covers such an attention, or an empty string.");
}

void set_cpu_isa(const std::string& name) {
  std::string known;
  for (auto isa : mto::available_isas()) {
    if (name == mto::isa_name(isa)) {
      mto::set_current_isa(isa);
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string(mto::isa_name(isa));
  }
  mto::fail("set_cpu_isa", "name", "be one of " + known, "\"" + name + "\"");
}

void set_num_threads(int n) {
  if (n < 1) mto::fail("set_num_threads", "n", "be at least 1", std::to_string(n));
  mto::set_num_threads(n);
}

// The table of formats, a row each.
using Facts = nb::typed<nb::dict, nb::str, nb::object>;
nb::typed<nb::list, Facts> formats() {
  nb::list rows;
  for (const auto* row : mto::all_formats()) {
    nb::dict facts;
    facts["name"] = row->name;
    facts["bits"] = row->bits;
    facts["block"] = row->block;
    facts["block_bytes"] = row->block_bytes;
    facts["dtype"] = row->words ? "uint32" : "uint8";
    const char* scales[] = {"inside", "float", "e8m0", "e4m3"};
    facts["scales"] = scales[static_cast<int>(row->scales)];
    const char* third[] = {"", "biases", "global_scale"};
    facts["third"] = third[static_cast<int>(row->third)];
    facts["group"] = nb::make_tuple(row->group_rows, row->group_cols);
    rows.append(facts);
  }
  return rows;
}

std::string supports(const std::string& op, const std::string& backend, mto::mx::Dtype dtype,
                     std::optional<int> bits, const std::optional<mto::GroupSize>& group_size,
                     const std::string& mode) {
  if (op != "quantize" && op != "dequantize" && op != "quantized_matmul") {
    mto::fail("supports", "op", "be one of quantize, dequantize, quantized_matmul",
              "\"" + op + "\"");
  }
  std::optional<mto::FormatCall> call;
  try {
    call = mto::check_format_call(op, mode, group_size, bits);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  mto::NamedDtypes dtypes{{"an operand", dtype}};
  return op == "quantize" ? mto::unsupported_quantize(backend, *call, dtypes)
                          : mto::unsupported(backend, *call, dtypes);
}

void bind_runtime(nb::module_& m) {
  m.def("cpu_isa", [] { return mto::isa_name(mto::current_isa()); });
  m.def("cpu_isas", [] {
    std::vector<std::string> names;
    for (auto isa : mto::available_isas()) names.push_back(mto::isa_name(isa));
    return names;
  });
  m.def("set_cpu_isa", &set_cpu_isa, "name"_a);
  m.def("num_threads", &mto::num_threads);
  m.def("set_num_threads", &set_num_threads, "n"_a);
  m.def("supports", &supports, "op"_a, "backend"_a, "dtype"_a, "bits"_a.none(),
        "group_size"_a.none(), "mode"_a,
        "The reason why no kernel covers the case, or an empty string.");
  m.def("formats", &formats, "The table of formats: a dictionary each.");
  m.def("register_format", &mto::register_format, "name"_a, "block"_a, "block_bytes"_a,
        "decode_block"_a, "metal"_a,
        "Adds a format of blocks. decode_block: the address of a function (block, values).");
  m.def("counters", &mto::counters);
  m.def("reset_counters", &mto::reset_counters);
  m.def("callback", &mto::callback, "name"_a, "run"_a, "inputs"_a, "shapes"_a, "dtypes"_a,
        "stream"_a.none());
  m.def(
      "smoke", [](const mto::mx::array& a) { return a.ndim() == 0; }, "a"_a,
      "True for a scalar: shows that this module and mlx.core share their types.");
}

}  // namespace

NB_MODULE(_ext, m) {
  bind_ops(m);
  bind_attention(m);
  bind_runtime(m);
  bind_metal(m);
}
