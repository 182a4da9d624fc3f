#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace vlmtrain::app {

/// What `vlmtrain merge` is asked.
struct MergeArguments {
  std::string adapter;
  std::string out;
  std::string base;
  std::string dtype = "auto";
  bool json = false;
};

/// Binds the command's options to `arguments`, which must outlive it.
void declare(CLI::App& command, MergeArguments& arguments);

}  // namespace vlmtrain::app
