#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace vlmtrain::app {

/// What `vlmtrain eval` is asked.
struct EvalArguments {
  std::string config;
  std::string checkpoint;
  std::string base;
  std::vector<std::string> overrides;
  std::string device = "auto";
  std::string answers;
  int64_t max_new_tokens = 32;
  std::string batch_size = "auto";
  std::string mask_out;
  bool json = false;
};

/// Binds the command's options to `arguments`, which must outlive it.
void declare(CLI::App& command, EvalArguments& arguments);

}  // namespace vlmtrain::app
