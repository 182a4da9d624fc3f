#pragma once

#include <CLI/CLI.hpp>

namespace vlmtrain::app {

/// What `vlmtrain options` is asked.
struct OptionsArguments {
  bool markdown = false;
};

/// Binds the command's options to `arguments`, which must outlive it.
void declare(CLI::App& command, OptionsArguments& arguments);

}  // namespace vlmtrain::app
