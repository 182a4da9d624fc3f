#pragma once

#include <filesystem>

namespace vlmtrain::planner {

/// Starts the process that rehearses while this process is about to become `program` by exec: both load LibTorch then,
/// side by side, and the first RehearsalProcess there takes it. What stands in its way is not said: it is said there.
void start_rehearsals_before(const std::filesystem::path& program);

}  // namespace vlmtrain::planner
