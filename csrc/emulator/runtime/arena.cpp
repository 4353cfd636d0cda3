#include "arena.h"

#include <sys/mman.h>

#include <cstring>

#include "pages.h"

namespace emu {
namespace {

// The alignment that the vector types of Metal may rely on.
constexpr size_t kAlignment = 16;

// Address space on both sides of a buffer. Wide, because a wrong index times a row is a large
// offset, and costs nothing. Halved until the system grants it.
constexpr size_t kWidestGap = size_t{256} << 20;
constexpr size_t kNarrowestGap = size_t{1} << 20;

// What a reference to an unbound buffer reads; see Binding.
alignas(64) char zeros[4096];

}  // namespace

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, total_);
}

bool Arena::map(int n, void* const* host, const size_t* bytes, bool guard_begin) {
  size_t data_bytes = 0;
  for (int i = 0; i < kBindings; ++i) {
    const bool bound = i < n && host[i] != nullptr;
    buffers_[i] = {bound ? host[i] : nullptr, nullptr, bound ? bytes[i] : 0, nullptr, 0};
    buffers_[i].page_bytes = round_up(buffers_[i].bytes, page_bytes());
    data_bytes += buffers_[i].page_bytes;
  }
  size_t gap = kWidestGap;
  for (; gap >= kNarrowestGap; gap /= 2) {
    total_ = data_bytes + 2 * gap * kBindings;
    base_ = reserve(total_);
    if (base_ != nullptr) break;
  }
  if (base_ == nullptr) return false;

  char* slot = base_;
  for (int i = 0; i < kBindings; ++i) {
    slots_.push_back(slot);
    Buffer& buffer = buffers_[i];
    if (!map_buffer(buffer, slot + gap, guard_begin)) return false;
    // An empty buffer is bound, but has no byte to read.
    const bool bound = buffer.host != nullptr;
    bindings_[i] = {bound ? buffer.data : slot + gap, bound ? buffer.data : zeros};
    slot += 2 * gap + buffer.page_bytes;
  }
  slots_.push_back(slot);
  memset(zeros, 0, sizeof zeros);
  return true;
}

bool Arena::map_buffer(Buffer& buffer, char* pages, bool guard_begin) {
  buffer.pages = pages;
  if (buffer.host == nullptr) return true;
  if (!allow_access(pages, buffer.page_bytes)) return false;
  const size_t used = round_up(buffer.bytes, kAlignment);
  buffer.data = guard_begin ? pages : pages + buffer.page_bytes - used;
  memset(pages, kPoison, buffer.data - pages);
  memcpy(buffer.data, buffer.host, buffer.bytes);
  char* end = buffer.data + buffer.bytes;
  memset(end, kPoison, pages + buffer.page_bytes - end);
  return true;
}

void Arena::copy_back() const {
  for (const Buffer& buffer : buffers_) {
    if (buffer.bytes > 0 && memcmp(buffer.host, buffer.data, buffer.bytes) != 0) {
      memcpy(buffer.host, buffer.data, buffer.bytes);
    }
  }
}

void Arena::check_surroundings(Findings& findings) const {
  for (int i = 0; i < kBindings; ++i) {
    const Buffer& buffer = buffers_[i];
    const char* data_end = buffer.data + buffer.bytes;
    for (const char* p = buffer.pages; p < buffer.pages + buffer.page_bytes; ++p) {
      if (p == buffer.data) p = data_end;
      if (p == buffer.pages + buffer.page_bytes) break;
      if (static_cast<unsigned char>(*p) == kPoison) continue;
      Finding finding;
      finding.kind = "device_out_of_bounds";
      finding.message = "a thread stored outside buffer " + text(i);
      finding.place = {i, "", p - buffer.data, buffer.bytes};
      finding.access = Access::kStore;
      findings.add(finding);
      break;
    }
  }
}

Place Arena::locate(uintptr_t address) const {
  const auto* p = reinterpret_cast<const char*>(address);
  if (p < base_ || p >= base_ + total_) return {};
  int index = 0;
  while (p >= slots_[index + 1]) ++index;
  const Buffer& buffer = buffers_[index];
  const char* begin = buffer.data != nullptr ? buffer.data : buffer.pages;
  return {index, "", p - begin, buffer.bytes};
}

bool Arena::accessible(const Place& place, size_t access_bytes) const {
  const Buffer& buffer = buffers_[place.buffer];
  if (buffer.page_bytes == 0) return false;
  const int64_t begin = buffer.pages - buffer.data;
  const auto end = begin + static_cast<int64_t>(buffer.page_bytes);
  return place.byte >= begin && place.byte + static_cast<int64_t>(access_bytes) <= end;
}

}  // namespace emu
