#pragma once

#include "vlmtrain/models/assemble.h"

namespace vlmtrain::models::brain_llava {

/// models::assemble() of a preset whose model takes volumes.
AssemblyResult assemble(const AssemblyOptions& options, const std::filesystem::path& out);

}  // namespace vlmtrain::models::brain_llava
