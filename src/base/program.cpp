#include "vlmtrain/base/program.h"

#include <unistd.h>

#include <fstream>

namespace vlmtrain {

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

std::vector<char*> exec_pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (auto& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& changes,
                                          const std::function<bool(std::string_view name)>& stays) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (stays(name) && !changes.contains(std::string(name))) entries.emplace_back(text);
  }
  for (const auto& [name, value] : changes) {
    entries.push_back(name);
    entries.back().append("=").append(value);
  }
  return entries;
}

void restart_program() {
  std::vector<std::string> arguments = own_arguments();
  execv("/proc/self/exe", exec_pointers(arguments).data());
}

}  // namespace vlmtrain
