#include "planner/trial.h"

#include <algorithm>

#include "planner/frugal.h"

namespace vlmtrain::planner {

namespace {

/// Of what the plan's passes of the tower save, what they may save of another job.
constexpr double kDoubt = 1.2;

}  // namespace

double Trial::hopeless() const {
  double most = 1;
  for (const auto& other : tried_.all()) {
    if (other->choices.micro_batch_size != plan_.chosen.choices.micro_batch_size ||
        other->choices.recompute != plan_.chosen.choices.recompute) {
      continue;
    }
    most = std::max(most, static_cast<double>(other->peaks.reserved_bytes) /
                              static_cast<double>(plan_.chosen.peaks.reserved_bytes));
  }
  return kDoubt * most;
}

std::optional<int64_t> Trial::reserved_bytes(const Job& job, const Workload& workload) {
  const models::RecomputeBlocks blocks{.vision = plan_.detail.vision_blocks, .language = plan_.detail.language_blocks};
  std::optional<int64_t> least;
  for (const Choices& choices : frugal_choices(request_.fixed, workload, blocks)) {
    // Tiles one by one are many launches, so a rehearsal takes long.
    if (least && static_cast<double>(*least) > hopeless() * static_cast<double>(plan_.limit.limit_bytes)) break;
    const auto bytes = tried_.reserved_bytes(job, choices, workload.candidates);
    if (bytes && (!least || *bytes < *least)) least = bytes;
    if (fits(least)) break;
  }
  return least;
}

}  // namespace vlmtrain::planner
