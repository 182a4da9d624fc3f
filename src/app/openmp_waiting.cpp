#include "app/openmp_waiting.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace vlmtrain::app {

namespace {

/// This process's arguments, from the kernel: they are needed unchanged.
std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

}  // namespace

void let_openmp_threads_sleep() {
  constexpr const char* kSetting = "OMP_WAIT_POLICY";
  if (std::getenv(kSetting) != nullptr) return;
  setenv(kSetting, "passive", /*overwrite=*/0);
  std::vector<std::string> arguments = own_arguments();
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (auto& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execv("/proc/self/exe", pointers.data());
  // Where it cannot be started again, it goes on as it is: slower on a busy machine, no different otherwise.
}

}  // namespace vlmtrain::app
