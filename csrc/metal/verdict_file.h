#pragma once

#include <functional>
#include <optional>
#include <string>

#include "metal/device.h"
#include "metal/kernel.h"

namespace mto::metal {

// A name for a text, the same in every process and on every machine.
using Digest = std::function<std::string(const std::string&)>;

// Verdicts that outlive the process: a small file each in $MLX_TENSOROPS_VERDICTS, or in the user's
// cache. `text` is what is compiled; a verdict holds for it, the constants, and the device.
class VerdictFile {
 public:
  VerdictFile(const Kernel& kernel, const std::string& text, const Device& device,
              const Digest& digest);

  // The fault, empty for a right kernel; nothing where there is no file, or not a whole one.
  std::optional<std::string> read() const;
  // Other processes see the whole file or none. Where the folder cannot be written, nothing is
  // kept.
  void write(const std::string& fault) const;

 private:
  std::string head_;  // its first lines
  std::string path_;  // empty where there is no folder
};

}  // namespace mto::metal
