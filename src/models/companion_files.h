#pragma once

#include <filesystem>

namespace vlmtrain::models {

/// Copies what a checkpoint holds beside config.json and the weights: tokenizer, processor and template files. One that
/// `source` lacks is left out.
void copy_companion_files(const std::filesystem::path& source, const std::filesystem::path& out);

}  // namespace vlmtrain::models
