#include "bindings_metal.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "common/route.h"
#include "metal/emulation.h"
#include "metal/verification.h"
#include "ops/quantize/quantize.h"

namespace nb = nanobind;
using namespace nb::literals;
using mto::metal::Kernel;
using mto::metal::Launch;

namespace {

nb::tuple tuple_of(mto::metal::Size size) { return nb::make_tuple(size.x, size.y, size.z); }

// Calls run(kernel, buffers, threadgroup_memory, threadgroups, threads, trial).
void call(const nb::object& run, const Launch& launch) {
  nb::gil_scoped_acquire gil;
  nb::list buffers, memory;
  for (const auto& buffer : launch.buffers) {
    auto address = reinterpret_cast<uintptr_t>(buffer.data);
    buffers.append(nb::make_tuple(buffer.index, address, buffer.size));
  }
  for (auto [index, size] : launch.threadgroup_memory) memory.append(nb::make_tuple(index, size));
  try {
    run(launch.kernel, buffers, memory, tuple_of(launch.threadgroups), tuple_of(launch.threads),
        launch.trial);
  } catch (nb::python_error& error) {
    // What is wrong with a kernel, without the way there. An interrupt is not the kernel's.
    if (!launch.trial || !error.matches(PyExc_Exception)) throw;
    throw std::runtime_error(nb::str(error.value()).c_str());
  }
}

// The last owner may be a thread that does not hold the interpreter's lock.
std::shared_ptr<nb::object> shared(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* held) {
            nb::gil_scoped_acquire gil;
            delete held;
          }};
}

void set_emulation(nb::object run, nb::object source, int macos_major, int macos_minor,
                   std::string architecture, std::string build, bool verified) {
  if (run.is_none()) return mto::metal::set_emulation(nullptr);
  auto emulation = std::make_shared<mto::metal::Emulation>();
  emulation->device = {macos_major, macos_minor, std::move(architecture), std::move(build),
                       verified};
  emulation->launch = [run = shared(std::move(run))](const Launch& launch) { call(*run, launch); };
  emulation->source = [source = shared(std::move(source))](const Kernel& kernel) {
    nb::gil_scoped_acquire gil;
    return nb::cast<std::string>((*source)(kernel));
  };
  mto::metal::set_emulation(std::move(emulation));
}

using Constant = std::pair<int, decltype(mto::metal::FunctionConstant::value)>;

std::vector<Constant> constants_of(const Kernel& kernel) {
  std::vector<Constant> out;
  for (const auto& constant : kernel.constants) out.emplace_back(constant.index, constant.value);
  return out;
}

// Where a stream's ops run: the backend, and why no kernel of ours can there, or nothing.
std::pair<std::string, std::string> place(mto::mx::StreamOrDevice stream) {
  auto found = mto::place_of(mto::mx::to_stream(stream));
  return {found.backend, found.unfit};
}

// Why no kernel of ours covers a call, or nothing, and whether one of MLX's does.
std::pair<std::string, bool> coverage(const std::string& op, const std::string& backend,
                                      const mto::NamedDtypes& dtypes, int bits, int group_size,
                                      const std::string& mode) {
  mto::Coverage found;
  if (mode == "affine") {
    found = mto::coverage_of({backend, ""}, {mode, group_size, bits}, dtypes);
  } else {
    std::optional<mto::FormatCall> call;
    try {
      call = mto::check_format_call(op, mode, group_size, bits);
    } catch (const std::invalid_argument& error) {
      return {error.what(), false};
    }
    found = mto::coverage_of({backend, ""}, *call, dtypes);
    if (op == "quantize") found.unsupported = mto::unsupported_quantize(backend, *call, dtypes);
  }
  return {found.unsupported, found.mlx_has_kernel};
}

std::string reason_against(const std::string& backend, const std::string& unfit,
                           const std::string& unsupported, bool mlx_has_kernel,
                           const std::string& route) {
  return mto::reason_against({backend, unfit}, {unsupported, mlx_has_kernel}, route, false);
}

// Verification may be asked for by a thread that holds the interpreter's lock, as an op's caller
// does, while the tasks that it waits for, and the emulator, need the lock.
void unlocked(const std::function<void()>& run) {
  if (!PyGILState_Check()) return run();
  nb::gil_scoped_release released;
  run();
}

std::string digest(const std::string& text) {
  nb::gil_scoped_acquire gil;
  auto hashed = nb::module_::import_("hashlib").attr("sha256")(nb::bytes(text.data(), text.size()));
  return nb::cast<std::string>(hashed.attr("hexdigest")());
}

void warn(const std::string& message) {
  nb::gil_scoped_acquire gil;
  nb::module_::import_("mlx_tensorops.verification").attr("warn")(message);
}

std::vector<std::tuple<Kernel, std::string, bool>> verdicts() {
  std::vector<std::tuple<Kernel, std::string, bool>> out;
  for (const auto& [kernel, fault, remembered] : mto::metal::verdicts()) {
    out.emplace_back(kernel, fault, remembered);
  }
  return out;
}

// So that a kernel of ours for the CPU is asked for, whatever is emulated.
nb::object without_emulation(const nb::typed<nb::callable, nb::object()>& run) {
  mto::metal::WithoutEmulation cpu;
  return run();
}

}  // namespace

void bind_metal(nb::module_& m) {
  mto::metal::set_verification_host({&digest, &warn, &unlocked});
  nb::class_<mto::metal::Kernel>(m, "MetalKernel", "One instance of a Metal kernel.")
      .def_ro("op", &mto::metal::Kernel::op)
      .def_ro("function", &mto::metal::Kernel::function)
      .def_prop_ro("constants", &constants_of)
      .def_prop_ro("host_name", &mto::metal::host_name)
      .def_prop_ro("pipeline_name", &mto::metal::pipeline_name)
      .def_prop_ro("source", &mto::metal::source);
  m.def("set_metal_emulation", &set_emulation, "run"_a.none(), "source"_a.none() = nb::none(),
        "macos_major"_a = 0, "macos_minor"_a = 0, "architecture"_a = "", "build"_a = "",
        "verified"_a = false);
  m.def("without_emulation", &without_emulation, "run"_a);
  m.def("verdicts", &verdicts, "Of this process: (kernel, its fault or nothing, remembered).");
  m.def("metal_kernels", &mto::metal::kernels_of, "a"_a,
        "The Metal kernels that would compute a lazy array of one of our ops.");
  m.def("place", &place, "stream"_a.none());
  m.def("coverage", &coverage, "op"_a, "backend"_a, "dtypes"_a, "bits"_a, "group_size"_a, "mode"_a);
  m.def("reason_against", &reason_against, "backend"_a, "unfit"_a, "unsupported"_a,
        "mlx_has_kernel"_a, "route"_a,
        "Why an op gives such a call to MLX's, or an empty string: what the ops ask themselves.");
  m.def("check_route", &mto::check_route, "op"_a, "route"_a);
  m.def("last_reason", &mto::last_reason,
        "What sent the last call of this thread to MLX's op, or an empty string.");
}
