#include "findings.h"

#include <cstdio>

#include "pages.h"

namespace emu {
namespace {

const char* name_of(Severity severity) {
  switch (severity) {
    case Severity::kNote:
      return "note";
    case Severity::kError:
      return "error";
    case Severity::kFault:
      return "fault";
  }
  return "";
}

const char* name_of(Access access) {
  switch (access) {
    case Access::kNone:
      return "";
    case Access::kLoad:
      return "load";
    case Access::kStore:
      return "store";
    case Access::kAtomic:
      return "atomic";
    case Access::kUnknown:
      return "unknown";
  }
  return "";
}

bool same(const Finding& a, const Finding& b) {
  return a.kind == b.kind && a.message == b.message && a.line == b.line &&
         a.place.buffer == b.place.buffer && a.trace.n == b.trace.n &&
         (a.trace.n == 0 || a.trace.pcs[0] == b.trace.pcs[0]);
}

void add_number(std::string& json, const char* name, int64_t value) {
  json += ", \"" + std::string(name) + "\": " + text(value);
}

void add_text(std::string& json, const char* name, const std::string& value) {
  json += ", \"" + std::string(name) + "\": " + json_string(value);
}

void add_place(std::string& json, const Finding& finding) {
  const Place& place = finding.place;
  if (place.buffer >= 0) add_number(json, "buffer", place.buffer);
  if (*place.variable != '\0') add_text(json, "variable", place.variable);
  if (place.known()) {
    add_number(json, "byte", place.byte);
    add_number(json, "buffer_bytes", static_cast<int64_t>(place.bytes));
  }
  if (finding.access == Access::kNone) return;
  add_text(json, "access", name_of(finding.access));
  if (finding.access_bytes > 0) {
    add_number(json, "access_bytes", static_cast<int64_t>(finding.access_bytes));
  }
}

void add_who(std::string& json, const Who& who) {
  if (who.lane < 0) return;
  const uint32_t* group = who.threadgroup;
  json +=
      ", \"threadgroup\": [" + text(group[0]) + ", " + text(group[1]) + ", " + text(group[2]) + "]";
  add_number(json, "lane", who.lane);
  add_number(json, "simdgroup", who.lane / 32);
}

void add_trace(std::string& json, const char* name, const Trace& trace, uintptr_t base) {
  json += ", \"" + std::string(name) + "\": [";
  for (int i = 0; i < trace.n; ++i) {
    json += (i == 0 ? "" : ", ") + text(trace.pcs[i] - base);
  }
  json += "]";
}

}  // namespace

void walk_frames(uintptr_t frame, uintptr_t low, uintptr_t high, Trace& trace) {
  while (trace.n < Trace::kDepth) {
    if (frame < low || frame + 2 * sizeof(uintptr_t) > high) return;
    if (frame % sizeof(uintptr_t) != 0) return;
    const auto* words = reinterpret_cast<const uintptr_t*>(frame);
    if (words[1] == 0) return;
    // The call, not the instruction after it, which may belong to the next line.
    trace.pcs[trace.n++] = words[1] - 1;
    if (words[0] <= frame) return;
    frame = words[0];
  }
}

void Findings::clear(const std::string& kernel) {
  Lock lock(mutex_);
  kernel_ = kernel;
  findings_.clear();
}

void Findings::add(Finding finding) {
  Lock lock(mutex_);
  for (Finding& known : findings_) {
    if (same(known, finding)) {
      ++known.count;
      return;
    }
  }
  // A fault explains the status of the launch, so it is never dropped.
  if (findings_.size() < kMost || finding.severity == Severity::kFault) {
    findings_.push_back(std::move(finding));
  }
}

std::string Findings::json() const {
  Lock lock(mutex_);
  const uintptr_t base = library_base();
  std::string json = "[";
  for (const Finding& finding : findings_) {
    if (json.size() > 1) json += ",\n";
    json += "{\"kind\": " + json_string(finding.kind);
    add_text(json, "severity", name_of(finding.severity));
    add_text(json, "message", finding.message);
    add_text(json, "kernel", kernel_);
    add_number(json, "count", static_cast<int64_t>(finding.count));
    add_who(json, finding.who);
    add_place(json, finding);
    if (finding.line > 0) add_number(json, "line", finding.line);
    if (finding.other_lane >= 0) add_number(json, "other_lane", finding.other_lane);
    if (finding.other_line > 0) add_number(json, "other_line", finding.other_line);
    add_trace(json, "pcs", finding.trace, base);
    if (finding.other_trace.n > 0) add_trace(json, "other_pcs", finding.other_trace, base);
    json += "}";
  }
  return json + "]";
}

std::string json_string(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      snprintf(escape, sizeof escape, "\\u%04x", c);
      quoted += escape;
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace emu
