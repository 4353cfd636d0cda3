# Writes OUTPUT, which defines mto::metal::embedded(), from FILES (a list, relative to ROOT). Run by
# cmake -P at build time.

set(_entries "")
foreach(file IN LISTS FILES)
  file(READ "${ROOT}/${file}" text)
  # MLX hands sources over as ASCII, and anything else as an empty library.
  string(REGEX MATCH "[^\t\n -~]" strange "${text}")
  if(NOT strange STREQUAL "")
    message(FATAL_ERROR "${file} must be ASCII, got ${strange}.")
  endif()
  string(APPEND _entries "      {\"${file}\", R\"MTO(${text})MTO\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "#include \"metal/embedded.h\"\n
namespace mto::metal {\n
const std::vector<Embedded>& embedded() {
  static const std::vector<Embedded> files = {
${_entries}  };
  return files;
}\n
}  // namespace mto::metal\n")
