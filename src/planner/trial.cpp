#include "planner/trial.h"

#include <algorithm>

#include "planner/frugal.h"

namespace vlmtrain::planner {

namespace {

/// Share of the limit above which other passes of the tower do not help either.
constexpr double kHopeless = 1.3;

}  // namespace

std::optional<int64_t> Trial::reserved_bytes(const Job& job, const Workload& workload) {
  const models::RecomputeBlocks blocks{.vision = plan_.detail.vision_blocks, .language = plan_.detail.language_blocks};
  auto list = frugal_choices(request_.fixed, workload, blocks);
  const auto is_the_plans = [this](const Choices& choices) { return choices == plan_.chosen.choices; };
  std::stable_partition(list.begin(), list.end(), is_the_plans);
  std::optional<int64_t> least;
  for (const Choices& choices : list) {
    if (least && static_cast<double>(*least) > kHopeless * static_cast<double>(plan_.limit.limit_bytes)) break;
    const auto bytes = tried_.reserved_bytes(job, choices, workload.candidates);
    if (bytes && (!least || *bytes < *least)) least = bytes;
    if (fits(least)) break;
  }
  return least;
}

}  // namespace vlmtrain::planner
