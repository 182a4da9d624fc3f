#pragma once

#include <cstdint>
#include <functional>

namespace vlmtrain::data {

/// Calls `task` with the numbers from 0 to count - 1 on `workers` threads (at least one), in chunks
/// of consecutive numbers. Calls `on_progress`, if set, on the caller's thread from time to time
/// with the number of finished calls. The first exception of either ends the loop and is rethrown
/// after all threads have stopped.
void parallel_for(int64_t count, int64_t workers, const std::function<void(int64_t)>& task,
                  const std::function<void(int64_t num_done)>& on_progress = {});

}  // namespace vlmtrain::data
