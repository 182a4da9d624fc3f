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

void restart_program() {
  std::vector<std::string> arguments = own_arguments();
  execv("/proc/self/exe", exec_pointers(arguments).data());
}

}  // namespace vlmtrain
