#pragma once

#include <CLI/CLI.hpp>

#include <functional>

#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

/// Of an option that names a file or folder, or whose value cannot be empty for another reason.
CLI::Validator not_empty();
/// CLI11 makes a vast number of one below 0.
CLI::Validator not_negative();

/// What a subcommand does once its arguments are parsed.
using Action = std::function<ExitCode()>;

// Each declares its subcommand, with options bound to what the action holds.
Action declare_train(CLI::App& command);
Action declare_init(CLI::App& command);
Action declare_doctor(CLI::App& command);
Action declare_eval(CLI::App& command);
Action declare_inspect(CLI::App& command);
Action declare_generate(CLI::App& command);
Action declare_merge(CLI::App& command);
Action declare_options(CLI::App& command);
Action declare_plan(CLI::App& command);
Action declare_report(CLI::App& command);
Action declare_rehearse(CLI::App& command);

}  // namespace vlmtrain::app
