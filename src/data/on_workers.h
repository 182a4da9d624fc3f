#pragma once

#include <cstdint>
#include <functional>

namespace vlmtrain::data {

/// Calls `task` for 0 … count-1 on so many threads, a few in a row each; `on_progress` now and then on the caller's,
/// with how many are done. What either throws ends the call and is thrown again.
void parallel_for(int64_t count, int64_t workers, const std::function<void(int64_t)>& task,
                  const std::function<void(int64_t num_done)>& on_progress = {});

}  // namespace vlmtrain::data
