#include "testing/callback.h"

#include <cstdlib>

namespace mto {
namespace {

namespace nb = nanobind;

constexpr const char* kOp = "metal_kernel";

// Graphs are released by any thread, and after the interpreter has ended.
std::shared_ptr<PyObject> share(Callee function) {
  return {function.release().ptr(), [](PyObject* object) {
            if (!nb::is_alive()) return;
            nb::gil_scoped_acquire acquired;
            Py_DECREF(object);
          }};
}

// Waits until the tasks given to the stream so far are done: they compute the inputs. Not every
// caller of MLX has released the lock, and a task may need it (to release a NumPy array).
void wait_for(mx::Stream stream) {
  if (!PyGILState_Check()) return mx::synchronize(stream);
  nb::gil_scoped_release released;
  mx::synchronize(stream);
}

nb::object memory(char* data, int64_t bytes, int flags) {
  static char nothing;
  auto* view = PyMemoryView_FromMemory(bytes ? data : &nothing, bytes, flags);
  if (!view) nb::raise_python_error();
  return nb::steal(view);
}

// The memory that the elements of an array span, from the lowest address on.
nb::object operand(const mx::array& a) {
  int64_t first = 0;
  int64_t n_elements = a.size() == 0 ? 0 : 1;
  nb::list strides;
  for (int axis = 0; axis < static_cast<int>(a.ndim()); ++axis) {
    strides.append(a.strides(axis));
    if (a.size() == 0) continue;
    int64_t span = a.strides(axis) * (a.shape(axis) - 1);
    n_elements += std::abs(span);
    if (span < 0) first -= span;
  }
  int64_t itemsize = a.itemsize();
  // The interface for writers is the only one; the view is read-only.
  auto* begin = const_cast<char*>(a.data<char>()) - first * itemsize;
  return nb::make_tuple(memory(begin, n_elements * itemsize, PyBUF_READ), first, strides);
}

class Callback : public mx::Primitive {
 public:
  Callback(mx::Stream stream, std::string name, std::shared_ptr<PyObject> run)
      : mx::Primitive(stream), name_(std::move(name)), run_(std::move(run)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    wait_for(stream());
    nb::gil_scoped_acquire acquired;
    nb::list in, out;
    for (const auto& a : inputs) in.append(operand(a));
    for (auto& a : outputs) {
      a.set_data(mx::allocator::malloc(a.nbytes()));
      out.append(memory(a.data<char>(), a.nbytes(), PyBUF_WRITE));
    }
    nb::handle(run_.get())(in, out);
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("[metal_kernel] The emulator has no GPU stream.");
  }

  std::vector<mx::array> vjp(const std::vector<mx::array>&, const std::vector<mx::array>&,
                             const std::vector<int>&, const std::vector<mx::array>&) override {
    refuse("gradient", "custom_function.vjp");
  }

  std::vector<mx::array> jvp(const std::vector<mx::array>&, const std::vector<mx::array>&,
                             const std::vector<int>&) override {
    refuse("jvp", "custom_function.jvp");
  }

  std::pair<std::vector<mx::array>, std::vector<int>> vmap(const std::vector<mx::array>&,
                                                           const std::vector<int>&) override {
    refuse("vmap", "custom_function.vmap");
  }

  const char* name() const override { return name_.c_str(); }

 private:
  [[noreturn]] void refuse(const char* what, const char* how) {
    throw std::invalid_argument("[metal_kernel] kernel " + name_ + " has no " + what + ": mx." +
                                how + " defines one.");
  }

  std::string name_;
  std::shared_ptr<PyObject> run_;
};

}  // namespace

std::vector<mx::array> callback(const std::string& name, Callee run,
                                const std::vector<mx::array>& inputs,
                                const std::vector<std::vector<int>>& shapes,
                                const std::vector<mx::Dtype>& dtypes, mx::StreamOrDevice s) {
  auto stream = mx::to_stream(s, mx::Device::cpu);
  if (stream.device != mx::Device::cpu) fail(kOp, "stream", "be of the CPU", "one of a GPU");
  std::vector<mx::Shape> out_shapes;
  for (const auto& shape : shapes) out_shapes.emplace_back(shape.begin(), shape.end());
  auto primitive = std::make_shared<Callback>(stream, name, share(std::move(run)));
  return mx::array::make_arrays(std::move(out_shapes), dtypes, primitive, inputs);
}

}  // namespace mto
