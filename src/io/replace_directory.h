#pragma once

#include <filesystem>

namespace vlmtrain::io {

/// Swaps two folders' names in one step. False where the file system cannot; run_error where it fails otherwise.
bool exchange_names(const std::filesystem::path& left, const std::filesystem::path& right);

/// Renames `final_path` to a temporary name, from which clean_leftovers() brings it back; returns that name.
std::filesystem::path set_aside(const std::filesystem::path& final_path);

/// Gives `fresh` the name `final_path`, in two steps: sets the folder of that name aside, moves `fresh` in its place.
/// Returns where the previous folder is now.
std::filesystem::path replace_in_two_steps(const std::filesystem::path& fresh, const std::filesystem::path& final_path);

}  // namespace vlmtrain::io
