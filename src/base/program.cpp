#include "vlmtrain/base/program.h"

#include <system_error>

namespace vlmtrain {

namespace {

/// The arguments of set_program(), both empty before it is called.
struct SetProgram {
  std::filesystem::path path;
  std::vector<std::string> arguments;
};

SetProgram& set_program_state() {
  static SetProgram state;
  return state;
}

}  // namespace

std::filesystem::path get_program_path() {
  const auto& path = set_program_state().path;
  return path.empty() ? std::filesystem::path("/proc/self/exe") : path;
}

std::filesystem::path get_program_folder() {
  const auto& path = set_program_state().path;
  std::error_code ignored_error;
  return (path.empty() ? std::filesystem::read_symlink("/proc/self/exe", ignored_error) : path).parent_path();
}

void set_program(const std::filesystem::path& path, const std::vector<std::string>& arguments) {
  set_program_state() = {path, arguments};
}

const std::vector<std::string>& get_set_program_arguments() {
  return set_program_state().arguments;
}

}  // namespace vlmtrain
