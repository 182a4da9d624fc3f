#pragma once

#include "vlmtrain/models/assemble.h"

namespace vlmtrain::models::prs_med {

/// models::assemble() of a preset whose model draws masks.
Assembly assemble(const AssemblyParts& parts, const std::filesystem::path& out);

}  // namespace vlmtrain::models::prs_med
