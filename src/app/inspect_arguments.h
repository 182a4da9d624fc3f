#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "app/plan_arguments.h"

namespace vlmtrain::app {

/// What `vlmtrain inspect` is asked.
struct InspectArguments {
  std::string config;
  std::vector<std::string> overrides;
  PlanArguments gpu_flags;  ///< of it only --gpu and --gpu-gb
  std::string tokenizer;
  bool decode = false;
  int64_t samples = 3;
  std::vector<std::string> records;
  std::string html;
  bool json = false;
};

/// Binds the command's options to `arguments`, which must outlive it.
void declare(CLI::App& command, InspectArguments& arguments);

}  // namespace vlmtrain::app
