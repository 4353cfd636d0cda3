#include "metal/verdict_file.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace mto::metal {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNameMax = 150;  // of 255 that file systems allow
constexpr const char* kRight = "right\n";
constexpr const char* kWrong = "wrong: ";

std::string folder() {
  auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value ? value : "";
  };
  if (auto chosen = variable("MLX_TENSOROPS_VERDICTS"); !chosen.empty()) return chosen;
  auto user = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (user.empty() && !home.empty()) user = home + "/.cache";
  return user.empty() ? "" : user + "/mlx_tensorops/verdicts";
}

}  // namespace

VerdictFile::VerdictFile(const Kernel& kernel, const std::string& text, const Device& device,
                         const Digest& digest) {
  auto name = pipeline_name(kernel);
  head_ = "kernel " + name + "\ndevice " + to_string(device) + "\ntext of " +
          std::to_string(text.size()) + " bytes, " + digest(text) + "\n";
  auto in = folder();
  if (!in.empty()) path_ = in + "/" + name.substr(0, kNameMax) + "-" + digest(head_);
}

std::optional<std::string> VerdictFile::read() const {
  if (path_.empty()) return std::nullopt;
  std::ifstream file(path_, std::ios::binary);
  std::ostringstream all;
  all << file.rdbuf();
  auto content = all.str();
  if (!file || !content.starts_with(head_)) return std::nullopt;
  auto verdict = content.substr(head_.size());
  if (verdict == kRight) return "";
  // A line of which the end is missing is not whole.
  auto prefix = std::string_view(kWrong).size();
  if (!verdict.starts_with(kWrong) || verdict.size() < prefix + 2 || verdict.back() != '\n') {
    return std::nullopt;
  }
  return verdict.substr(prefix, verdict.size() - prefix - 1);
}

void VerdictFile::write(const std::string& fault) const {
  if (path_.empty()) return;
  auto line = fault;
  std::replace(line.begin(), line.end(), '\n', ' ');
  auto mine = path_ + "." + std::to_string(getpid());
  std::error_code failed;
  fs::create_directories(fs::path(path_).parent_path(), failed);
  {
    std::ofstream file(mine, std::ios::binary);
    file << head_ << (line.empty() ? kRight : kWrong + line + "\n");
    file.close();
    if (!file) failed = std::make_error_code(std::errc::io_error);
  }
  if (!failed) fs::rename(mine, path_, failed);
  if (failed) fs::remove(mine, failed);
}

}  // namespace mto::metal
