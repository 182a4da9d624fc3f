#pragma once

#include <filesystem>

namespace vlmtrain::planner {

/// Starts the process that rehearses while this process is about to become `program` by exec: both load LibTorch then,
/// side by side, and the first DryRunProcess there takes it. What stands in its way is not said: it is said there.
void prestart_dry_run_process(const std::filesystem::path& program);

}  // namespace vlmtrain::planner
