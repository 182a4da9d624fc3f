#pragma once

#include "vlmtrain/models/assemble.h"

namespace vlmtrain::models::prs_med {

/// models::assemble() of a preset whose model draws masks.
AssemblyResult assemble(const AssemblyOptions& options, const std::filesystem::path& out);

}  // namespace vlmtrain::models::prs_med
