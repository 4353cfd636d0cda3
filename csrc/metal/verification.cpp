#include "metal/verification.h"

#include <mlx/primitives.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <typeindex>
#include <unordered_map>

#include "common/counters.h"
#include "metal/emulation.h"
#include "metal/trial.h"

namespace mto::metal {
namespace {

// What has been asked before, so that the answer costs less than the names of kernels.
struct Asked {
  std::shared_ptr<mx::Primitive> primitive;
  TrialShapes shapes;
  std::vector<mx::Dtype> dtypes;
  std::string reason;
};
constexpr size_t kAskedMax = 4096;

std::mutex trials;                     // one at a time; taken before `state`
std::mutex state;                      // of everything below
std::map<std::string, Verdict> known;  // by the pipeline's name
std::set<std::string> warned;
std::unordered_multimap<size_t, Asked> asked;
VerificationHost host;

thread_local bool trial_here = false;

struct Trial {
  Trial() { trial_here = true; }
  ~Trial() { trial_here = false; }
};

size_t hash_of(const mx::array& a) {
  size_t hash = std::type_index(typeid(a.primitive())).hash_code();
  auto add = [&](size_t value) { hash = (hash ^ value) * 1099511628211u; };
  for (const auto& input : a.inputs()) {
    add(static_cast<size_t>(input.dtype().val()));
    for (auto size : input.shape()) add(static_cast<size_t>(size));
  }
  return hash;
}

bool same(const Asked& before, const mx::array& a) {
  const auto& primitive = a.primitive();
  if (typeid(*before.primitive) != typeid(primitive) ||
      !before.primitive->is_equivalent(primitive)) {
    return false;
  }
  for (size_t i = 0; i < a.inputs().size(); ++i) {
    const auto& input = a.inputs()[i];
    if (before.shapes[i] != input.shape() || before.dtypes[i] != input.dtype()) return false;
  }
  return true;
}

std::optional<std::string> recall(size_t hash, const mx::array& a) {
  std::lock_guard lock(state);
  auto [begin, end] = asked.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    if (same(at->second, a)) return at->second.reason;
  }
  return std::nullopt;
}

void remember(size_t hash, const mx::array& a, const std::string& reason) {
  Asked now{a.primitive_ptr(), {}, {}, reason};
  for (const auto& input : a.inputs()) {
    now.shapes.push_back(input.shape());
    now.dtypes.push_back(input.dtype());
  }
  std::lock_guard lock(state);
  if (asked.size() >= kAskedMax) asked.clear();
  asked.emplace(hash, std::move(now));
}

std::vector<std::string> names(const std::vector<Kernel>& kernels) {
  std::vector<std::string> out;
  for (const auto& kernel : kernels) out.push_back(pipeline_name(kernel));
  return out;
}

// Inputs of a size that reach the kernels of `a`. Where none do, the large ones are of its own
// shapes, and there are no small ones.
std::vector<mx::array> inputs_for(const mx::array& a, TrialSize size) {
  auto& op = dynamic_cast<MetalPrimitive&>(a.primitive());
  auto wanted = names(kernels_of(a));
  TrialShapes own;
  for (const auto& input : a.inputs()) own.push_back(input.shape());
  for (const auto& shapes : op.trial_shapes(a.inputs(), size)) {
    auto inputs = op.trial_inputs(shapes, a.inputs());
    auto like_a = outputs_of(a, inputs, a.primitive().stream())[0];
    if (names(kernels_of(like_a)) == wanted) return inputs;
  }
  if (size == TrialSize::kSmall) return {};
  return op.trial_inputs(own, a.inputs());
}

// The fault that trials find; whether it is certain, or could be the moment's.
std::pair<std::string, bool> fault_of(const mx::array& a) {
  Trial trial;
  try {
    for (auto size : {TrialSize::kSmall, TrialSize::kLarge}) {
      auto inputs = inputs_for(a, size);
      if (inputs.empty()) continue;
      {
        WithoutEmulation cpu;
        mx::eval(inputs);
      }
      auto fault = run_trial(a, inputs);
      if (!fault.empty()) return {fault, true};
    }
  } catch (const std::runtime_error& error) {
    std::string message = error.what();
    return {"it cannot be run (" + message.substr(0, message.find('\n')) + ")", false};
  }
  return {"", true};
}

// Settles the verdicts about the kernels of `a`.
void judge(const mx::array& a) {
  std::lock_guard one_at_a_time(trials);
  auto device = device_of(a.primitive().stream());
  if (!device) return;  // the emulation has ended meanwhile
  std::vector<std::pair<Verdict, VerdictFile>> open;
  for (const auto& kernel : kernels_of(a)) {
    {
      std::lock_guard lock(state);
      if (known.count(pipeline_name(kernel))) continue;
    }
    auto active = emulation();
    VerdictFile file(kernel, active ? active->source(kernel) : source(kernel), *device,
                     host.digest);
    if (auto fault = file.read()) {
      std::lock_guard lock(state);
      known[pipeline_name(kernel)] = {kernel, *fault, true};
    } else {
      open.push_back({{kernel, "", false}, file});
    }
  }
  if (open.empty()) return;
  auto [fault, certain] = fault_of(a);
  for (auto& [verdict, file] : open) {
    if (certain) file.write(fault);
    verdict.fault = fault;
    std::lock_guard lock(state);
    known[pipeline_name(verdict.kernel)] = verdict;
  }
}

// Of the first kernel of `a` that is not to be used; its name and what is wrong, or nothing.
std::pair<std::string, std::string> first_fault(const mx::array& a) {
  for (const auto& name : names(kernels_of(a))) {
    std::lock_guard lock(state);
    auto verdict = known.find(name);
    if (verdict != known.end() && !verdict->second.fault.empty()) {
      return {name, verdict->second.fault};
    }
  }
  return {};
}

bool switched_off() {
  const char* value = std::getenv("MLX_TENSOROPS_VERIFY");
  return value && std::string_view(value) == "0";
}

void warn_once(const std::string& name, const std::string& fault, const Device& device) {
  std::function<void(const std::string&)> warn;
  {
    std::lock_guard lock(state);
    if (!warned.insert(name).second) return;
    warn = host.warn;
  }
  if (warn) {
    warn("[verification] kernel " + name + " is not used on " + to_string(device) + ": " + fault +
         ". MLX's op runs in its place.");
  }
}

}  // namespace

std::string distrust(const mx::array& a) {
  auto device = device_of(a.primitive().stream());
  if (!device || !device->verified || trial_here || switched_off()) return "";
  auto hash = hash_of(a);
  if (auto reason = recall(hash, a)) return *reason;
  if (host.unlocked) {
    host.unlocked([&] { judge(a); });
  } else {
    judge(a);
  }
  auto [name, fault] = first_fault(a);
  auto reason = fault.empty() ? "" : "kernel " + name + ": " + fault;
  remember(hash, a, reason);
  if (!fault.empty()) warn_once(name, fault, *device);
  return reason;
}

std::vector<Verdict> verdicts() {
  std::lock_guard lock(state);
  std::vector<Verdict> out;
  for (const auto& [name, verdict] : known) out.push_back(verdict);
  return out;
}

void forget_verdicts() {
  std::lock_guard lock(state);
  known.clear();
  warned.clear();
  asked.clear();
}

bool in_trial() { return trial_here; }

void set_verification_host(VerificationHost chosen) { host = std::move(chosen); }

}  // namespace mto::metal
