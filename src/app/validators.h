#pragma once

#include <CLI/CLI.hpp>

namespace vlmtrain::app {

/// Of an option that names a file or folder, or whose value cannot be empty for another reason.
CLI::Validator not_empty();
/// CLI11 makes a vast number of one below 0.
CLI::Validator non_negative();

}  // namespace vlmtrain::app
