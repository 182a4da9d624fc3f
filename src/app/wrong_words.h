#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace vlmtrain::app {

/// What is wrong with a command line that CLI11 refuses, with the remedy, as one line. `arguments` as typed, behind the
/// program's name.
std::string describe_usage_error(const CLI::App& app, const CLI::ParseError& error,
                                 const std::vector<std::string>& arguments);

}  // namespace vlmtrain::app
