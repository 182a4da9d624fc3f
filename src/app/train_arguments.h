#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace vlmtrain::app {

/// What `vlmtrain train` is asked.
struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string device = "auto";
  bool json = false;
  bool quiet = false;
  int64_t launch = 1;
};

/// Binds the command's options to `arguments`, which must outlive it.
void declare(CLI::App& command, TrainArguments& arguments);

}  // namespace vlmtrain::app
