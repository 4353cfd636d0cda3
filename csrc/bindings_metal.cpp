#include "bindings_metal.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "common/check.h"
#include "metal/emulation.h"

namespace nb = nanobind;
using namespace nb::literals;
using mto::metal::Launch;

namespace {

nb::tuple tuple_of(mto::metal::Size size) { return nb::make_tuple(size.x, size.y, size.z); }

// Calls run(kernel, buffers, threadgroup_memory, threadgroups, threads).
void call(const nb::object& run, const Launch& launch) {
  nb::gil_scoped_acquire gil;
  nb::list buffers, memory;
  for (const auto& buffer : launch.buffers) {
    auto address = reinterpret_cast<uintptr_t>(buffer.data);
    buffers.append(nb::make_tuple(buffer.index, address, buffer.size));
  }
  for (auto [index, size] : launch.threadgroup_memory) memory.append(nb::make_tuple(index, size));
  run(launch.kernel, buffers, memory, tuple_of(launch.threadgroups), tuple_of(launch.threads));
}

// The last owner may be a thread that does not hold the interpreter's lock.
std::shared_ptr<nb::object> shared(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* held) {
            nb::gil_scoped_acquire gil;
            delete held;
          }};
}

void set_emulation(nb::object run, int macos_major, int macos_minor, std::string architecture,
                   std::string build) {
  if (run.is_none()) return mto::metal::set_emulation(nullptr);
  auto emulation = std::make_shared<mto::metal::Emulation>();
  emulation->device = {macos_major, macos_minor, std::move(architecture), std::move(build)};
  emulation->launch = [run = shared(std::move(run))](const Launch& launch) { call(*run, launch); };
  mto::metal::set_emulation(std::move(emulation));
}

using Constant = std::tuple<int, std::variant<bool, int32_t, uint32_t, float>>;

std::vector<Constant> constants_of(const mto::metal::Kernel& kernel) {
  std::vector<Constant> out;
  for (const auto& constant : kernel.constants) out.emplace_back(constant.index, constant.value);
  return out;
}

}  // namespace

void bind_metal(nb::module_& m) {
  nb::class_<mto::metal::Kernel>(m, "MetalKernel", "One instance of a Metal kernel.")
      .def_ro("op", &mto::metal::Kernel::op)
      .def_ro("function", &mto::metal::Kernel::function)
      .def_prop_ro("constants", &constants_of)
      .def_prop_ro("host_name", &mto::metal::host_name)
      .def_prop_ro("pipeline_name", &mto::metal::pipeline_name)
      .def_prop_ro("source", &mto::metal::source);
  m.def("set_metal_emulation", &set_emulation, "run"_a.none(), "macos_major"_a = 0,
        "macos_minor"_a = 0, "architecture"_a = "", "build"_a = "");
  m.def("metal_kernels", &mto::metal::kernels_of, "a"_a,
        "The Metal kernels that would compute a lazy array of one of our ops.");
}
