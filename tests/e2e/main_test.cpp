#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <string_view>

#include "e2e/command.h"

namespace vlmtrain::e2e {

namespace {

/// Runs commands that other test programs write to stdin, one line of JSON each: {"folder": …,
/// "arguments": […], "environment": {…}}. Prints the exit code of each (-1: ended by a signal). The
/// command's output is in stdout.txt and stderr.txt of the folder.
int serve_commands() {
  std::ifstream requests("/proc/self/fd/" + std::to_string(dup(STDIN_FILENO)));
  dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  for (std::string line; std::getline(requests, line);) {
    const auto request = nlohmann::json::parse(line);
    const auto environment = request.at("environment").get<std::map<std::string, std::string>>();
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    const Result result =
        Process(request.at("folder").get<std::string>(), request.at("arguments").get<std::vector<std::string>>())
            .wait();
    for (const auto& [name, value] : environment) unsetenv(name.c_str());
    std::cout << result.exit_code << std::endl;
  }
  return 0;
}

}  // namespace

}  // namespace vlmtrain::e2e

// The tests, or the server of commands. OpenMP reads its variables when it is loaded, and forked
// commands have the threads of this process. Commands use no network, except in tests of the Hub.
int main(int argc, char** argv) {
  const char* const threads = std::getenv("OMP_NUM_THREADS");
  if (threads == nullptr || std::string_view(threads) != "1") {
    setenv("OMP_NUM_THREADS", "1", 1);
    execv("/proc/self/exe", argv);
  }
  setenv("HF_HUB_OFFLINE", "1", 0);
  vlmtrain::e2e::can_fork_commands();  // remembers the loader's variables
  if (argc > 1 && std::string_view(argv[1]) == "--serve") return vlmtrain::e2e::serve_commands();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
