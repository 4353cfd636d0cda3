#pragma once

#include <string_view>
#include <vector>

namespace mto::metal {

struct Embedded {
  std::string_view path;  // below the project's root
  std::string_view text;
};

// Every file that a Metal source may include; made by cmake/embed.cmake.
const std::vector<Embedded>& embedded();

}  // namespace mto::metal
