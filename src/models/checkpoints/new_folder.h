#pragma once

#include <filesystem>

namespace vlmtrain::models {

/// Makes sure that a checkpoint can be written to `out`, and removes what killed writers left beside it. UserError
/// (kUsage) where `out` names nothing, or something that is not an empty folder.
void prepare_output_folder(const std::filesystem::path& out);

}  // namespace vlmtrain::models
