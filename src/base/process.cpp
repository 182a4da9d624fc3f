#include "vlmtrain/base/process.h"

#include <unistd.h>

#include <array>
#include <fstream>

namespace vlmtrain {

std::string get_host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::vector<std::string> read_process_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

std::vector<char*> make_exec_array(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (auto& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> make_environment(const std::map<std::string, std::string>& overrides,
                                          const std::function<bool(std::string_view name)>& keep) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (keep(name) && !overrides.contains(std::string(name))) entries.emplace_back(text);
  }
  for (const auto& [name, value] : overrides) {
    entries.push_back(name);
    entries.back().append("=").append(value);
  }
  return entries;
}

void restart_program() {
  std::vector<std::string> arguments = read_process_arguments();
  execv("/proc/self/exe", make_exec_array(arguments).data());
}

}  // namespace vlmtrain
