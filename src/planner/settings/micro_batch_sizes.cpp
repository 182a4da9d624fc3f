#include <fmt/ranges.h>

#include <cstdint>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/planner/job.h"

// The functions of planner/job.h that the check of the configuration calls, too.

namespace vlmtrain::planner {

std::vector<int64_t> find_divisors(int64_t number) {
  std::vector<int64_t> small_divisors;
  std::vector<int64_t> large_divisors;
  for (int64_t candidate = 1; candidate * candidate <= number; ++candidate) {
    if (number % candidate != 0) continue;
    small_divisors.push_back(candidate);
    if (candidate != number / candidate) large_divisors.push_back(number / candidate);
  }
  small_divisors.insert(small_divisors.end(), large_divisors.rbegin(), large_divisors.rend());
  return small_divisors;
}

UserError make_micro_batch_size_error(int64_t micro_batch_size, int64_t samples_per_rank, int64_t global_batch_size) {
  return usage_error("{}: {} does not divide the {} samples per rank (global batch size {}); choose one of {}, or auto",
                     keys::training::kMicroBatchSize, micro_batch_size, samples_per_rank, global_batch_size,
                     fmt::join(find_divisors(samples_per_rank), ", "));
}

}  // namespace vlmtrain::planner
