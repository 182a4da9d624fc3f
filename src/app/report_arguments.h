#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace vlmtrain::app {

/// What `vlmtrain report` is asked.
struct ReportArguments {
  std::string folder;
};

/// Binds the command's options to `arguments`, which must outlive it.
void declare(CLI::App& command, ReportArguments& arguments);

}  // namespace vlmtrain::app
