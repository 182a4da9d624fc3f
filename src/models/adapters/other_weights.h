#pragma once

#include <filesystem>

namespace vlmtrain::models {

/// Throws UserError (kBadData) where an adapter's folder holds weights in files that are not the adapter's, which would
/// be ignored: a projector that LLaVA's or ms-swift's scripts train next to LoRA, a value head, a part of the vision
/// tower. It names the file and what to do. States of optimizers and the like are passed over.
void refuse_foreign_weights(const std::filesystem::path& folder);

}  // namespace vlmtrain::models
