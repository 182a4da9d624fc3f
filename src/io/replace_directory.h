#pragma once

#include <filesystem>

namespace vlmtrain::io {

/// Swaps two folders' names in one step. False where the file system cannot; run_error where it fails otherwise.
bool exchange_names(const std::filesystem::path& first, const std::filesystem::path& second);

/// Renames `final_path` to a temporary name, from which clean_up_temporaries() brings it back; returns that name.
std::filesystem::path move_aside(const std::filesystem::path& final_path);

/// Gives `new_folder` the name `final_path`, in two steps: sets the folder of that name aside, moves `new_folder` in
/// its place. Returns where the previous folder is now.
std::filesystem::path replace_in_two_steps(const std::filesystem::path& new_folder,
                                           const std::filesystem::path& final_path);

}  // namespace vlmtrain::io
