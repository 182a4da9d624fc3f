#pragma once

#include <CLI/CLI.hpp>

#include <functional>

#include "vlmtrain/base/error.h"

namespace vlmtrain::app {

/// Of an answer: more than any model has positions for.
inline constexpr int64_t kMostNewTokens = 10'000'000;

/// What a subcommand does once its arguments are parsed.
using Action = std::function<ExitCode()>;

// Each declares its subcommand, with options bound to what the action holds.
Action declare_train(CLI::App& command);
Action declare_init(CLI::App& command);
Action declare_eval(CLI::App& command);
Action declare_generate(CLI::App& command);
Action declare_merge(CLI::App& command);
Action declare_options(CLI::App& command);
Action declare_plan(CLI::App& command);
Action declare_report(CLI::App& command);
Action declare_rehearse(CLI::App& command);

}  // namespace vlmtrain::app
