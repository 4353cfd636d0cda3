#include "values.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "pages.h"
#include "worker.h"

namespace emu {
namespace {

// Parameters and results are described by up to this many bytes.
constexpr size_t kParameterBytes = 800;

// Of memory that no kernel has to set: loads find nothing unset in the one, what is known about
// stores goes to the other. As large as the largest object that is accessed at once.
constexpr size_t kOtherBytes = size_t{1} << 20;
alignas(16) char other_unset[2][kOtherBytes];
alignas(16) uint32_t other_origins[2][kOtherBytes / 4];

Metadata other(bool store) { return {other_unset[store], other_origins[store]}; }

// What the compiler calls a variable, as the kernel does.
std::string name_of(const char* name) {
  std::string text = name;
  const std::string suffix = ".addr";
  if (text.compare(0, 4, "----") == 0) text.erase(0, 4);
  text = text.substr(0, text.find('@'));
  if (text.size() > suffix.size() &&
      text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0) {
    text.resize(text.size() - suffix.size());
  }
  // Names with a dot are of temporary objects.
  return text.find('.') == std::string::npos ? text : "";
}

}  // namespace

Mirror::~Mirror() {
  if (unset_ != nullptr) munmap(unset_, 2 * bytes_);
}

bool Mirror::map(const void* memory, size_t bytes) {
  begin_ = reinterpret_cast<uintptr_t>(memory) / 4 * 4;
  const size_t wanted = reinterpret_cast<uintptr_t>(memory) + bytes - begin_;
  bytes_ = round_up(wanted, page_bytes());
  unset_ = reserve(2 * bytes_);
  return unset_ != nullptr && allow_access(unset_, 2 * bytes_);
}

Metadata Mirror::at(uintptr_t address) const {
  const size_t offset = address - begin_;
  return {unset_ + offset, reinterpret_cast<uint32_t*>(unset_ + bytes_) + offset / 4};
}

bool Values::start() {
  const Stacks& stacks = worker_.stacks;
  if (!stacks_.map(stacks.memory(), stacks.memory_bytes())) return false;
  for (int i = 0; i < kBindings; ++i) {
    const size_t bytes = worker_.launch.arena.bytes(i);
    if (bytes > 0 && !buffers_[i].map(worker_.launch.arena.bindings()[i].data, bytes)) return false;
  }
  return true;
}

const Mirror* Values::find(uintptr_t address, size_t bytes) {
  if (stacks_.contains(address, bytes)) return &stacks_;
  if (const auto* variable = worker_.memory.find(address)) {
    const Mirror* mirror = variable->mirror.get();
    return mirror != nullptr && mirror->contains(address, bytes) ? mirror : nullptr;
  }
  const Place place = worker_.launch.arena.locate(address);
  if (!place.known() || !buffers_[place.buffer].contains(address, bytes)) return nullptr;
  return &buffers_[place.buffer];
}

Metadata Values::of_load(uintptr_t address, size_t bytes) {
  settle();
  const Mirror* mirror = find(address, bytes);
  return mirror != nullptr ? mirror->at(address) : other(false);
}

Metadata Values::of_store(uintptr_t address, size_t bytes, uintptr_t frame) {
  settle();
  const Mirror* mirror = find(address, bytes);
  if (mirror == nullptr) return other(true);
  if (mirror >= buffers_ && mirror < buffers_ + kBindings) {
    pending_ = {};
    pending_.kind = "uninitialised_value";
    pending_.place = worker_.launch.arena.locate(address);
    pending_.access = Access::kStore;
    pending_.access_bytes = bytes;
    worker_.locate(pending_, frame);
    pending_address_ = address;
  }
  return mirror->at(address);
}

void Values::settle() {
  if (pending_address_ == 0) return;
  const Mirror& mirror = buffers_[pending_.place.buffer];
  const uintptr_t address = pending_address_;
  const size_t bytes = pending_.access_bytes;
  pending_address_ = 0;
  char* unset = mirror.at(address).unset;
  const char* first = std::find_if(unset, unset + bytes, [](char bits) { return bits != 0; });
  if (first == unset + bytes) return;
  const InRuntime in_runtime;
  const uint32_t origin = *mirror.at(address + (first - unset)).origins;
  pending_.place.byte += first - unset;
  pending_.message =
      "store to buffer " + text(pending_.place.buffer) + " of a value that depends on ";
  describe(pending_, origin);
  memset(unset, 0, bytes);  // said once is enough
  findings().add(std::move(pending_));
}

void Values::copy(uintptr_t to, uintptr_t from, size_t bytes, uintptr_t frame) {
  if (bytes == 0 || bytes > kOtherBytes) return;
  const Metadata source = of_load(from, bytes);
  const Metadata target = of_store(to, bytes, frame);
  memmove(target.unset, source.unset, bytes);
  // Where the distance is no multiple of four, some origins are those of a neighbour.
  memmove(target.origins, source.origins, (bytes + 3) / 4 * 4);
  settle();
}

void Values::set(uintptr_t address, size_t bytes) {
  const Mirror* mirror = find(address, bytes);
  if (mirror != nullptr) memset(mirror->at(address).unset, 0, bytes);
}

void Values::forget(uintptr_t address, size_t bytes, const char* name, uintptr_t place) {
  const Mirror* mirror = find(address, bytes);
  if (mirror == nullptr || bytes == 0) return;
  const Metadata metadata = mirror->at(address);
  memset(metadata.unset, 0xFF, bytes);
  std::fill_n(metadata.origins, (address % 4 + bytes + 3) / 4, origin_of(name, place));
}

uint32_t Values::origin_of(const char* name, uintptr_t place) {
  const auto known = std::find_if(origins_.begin(), origins_.end(), [=](const Origin& origin) {
    return origin.name == name && origin.place == place;
  });
  const auto number = static_cast<uint32_t>(known - origins_.begin()) + 1;
  if (known == origins_.end()) origins_.push_back({name, place});
  return number;
}

void Values::describe(Finding& finding, uint32_t origin) const {
  const bool known = origin > 0 && origin <= origins_.size();
  const std::string name = known ? name_of(origins_[origin - 1].name) : "";
  finding.message += name.empty() ? "what was never set" : name + ", which was not set";
  if (!known || origins_[origin - 1].place == 0) return;
  finding.other_trace.n = 1;
  finding.other_trace.pcs[0] = origins_[origin - 1].place;
}

void Values::branch(uint32_t origin, uintptr_t frame) {
  settle();
  const InRuntime in_runtime;
  Finding finding;
  finding.kind = "uninitialised_value";
  finding.message = "a branch or an address depends on ";
  describe(finding, origin);
  worker_.record(std::move(finding), frame);
}

void Values::clear_parameters() { memset(call_state_, 0, kParameterBytes); }

}  // namespace emu
