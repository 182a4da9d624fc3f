#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace vlmtrain::app {

/// What `vlmtrain doctor` is asked.
struct DoctorArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string output_dir;
  std::string device = "auto";
  bool json = false;
};

/// Binds the command's options to `arguments`, which must outlive it.
void declare(CLI::App& command, DoctorArguments& arguments);

}  // namespace vlmtrain::app
