#include "planner/card_remedy_rehearsal.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/frugal.h"
#include "planner/larger_card.h"
#include "planner/least_limit.h"
#include "planner/option_search.h"
#include "vlmtrain/base/bytes.h"

namespace vlmtrain::planner {

namespace {

/// Of what the plan's passes of the tower save, what they may save of another job.
constexpr double kDoubt = 1.2;

}  // namespace

CardRemedyRehearsal::CardRemedyRehearsal(const PlanRequest& request, const Plan& plan, RehearsedOptions& rehearsed)
    : RemedyRehearsal({.job = request.job,
                       .workload = request.workload,
                       .fixed = request.fixed,
                       .sample_limits = request.sample_limits,
                       .words = request.words,
                       .has_bf16 = computes_in(*request.card.gpu, engine::Precision::kBf16)}),
      request_(request),
      plan_(plan),
      rehearsed_(rehearsed) {}

double CardRemedyRehearsal::hopeless() const {
  double most = 1;
  for (const auto& other : rehearsed_.all()) {
    if (other->choices.micro_batch_size != plan_.chosen.choices.micro_batch_size ||
        other->choices.recompute != plan_.chosen.choices.recompute) {
      continue;
    }
    most = std::max(most, static_cast<double>(other->peaks.reserved_bytes) / static_cast<double>(needed_bytes()));
  }
  return kDoubt * most;
}

std::optional<int64_t> CardRemedyRehearsal::least_bytes(const Job& job, const Workload& workload,
                                                        const FixedChoices& fixed) {
  const models::RecomputeBlocks blocks{.vision = plan_.detail.vision_blocks, .language = plan_.detail.language_blocks};
  return least_reserved(rehearsed_, job, workload, frugal_choices(fixed, workload, blocks), limit_bytes(),
                        hopeless() * static_cast<double>(limit_bytes()));
}

std::optional<RemedyRehearsal::Freed> CardRemedyRehearsal::plan_with(const FixedChoices& fixed) {
  const auto found = OptionSearch(rehearsed_, request_.workload, fixed, limit_bytes()).find();
  if (!found) return std::nullopt;
  return Freed{found->choices.micro_batch_size, plan_.total_bytes(*found)};
}

MemoryLimit CardRemedyRehearsal::limit_with(Mode mode, std::optional<double> gigabytes) const {
  return limit_of(request_.card, mode, gigabytes, request_.workload.world_size);
}

std::vector<Suggestion> CardRemedyRehearsal::more_memory() const {
  std::vector<Suggestion> list;
  const auto add = [&](std::string argument, std::string note) {
    list.push_back({.arguments = {std::move(argument)},
                    .note = std::move(note),
                    .makes_it_fit = true,
                    .total_bytes = total_bytes(needed_bytes())});
  };
  const auto least_margin = limit_with(Mode::kAggressive, request_.limit_gigabytes);
  if (needed_bytes() <= least_margin.limit_bytes) {
    add("memory.mode=aggressive", fmt::format("keeps {:g} % of the card free instead of {:g} %",
                                              least_margin.margin_percent, plan_.limit.margin_percent));
  }
  if (!request_.limit_gigabytes) return list;
  const double most = in_gigabytes(request_.card.memory_bytes);
  const auto gigabytes = least_limit(*request_.limit_gigabytes, most, [&](double tried) {
    return needed_bytes() <= limit_with(request_.mode, tried).limit_bytes;
  });
  if (gigabytes) {
    add(fmt::format("memory.limit_gb={:g}", *gigabytes), "lets the run take more of the card");
  } else if (needed_bytes() <= limit_with(request_.mode, std::nullopt).limit_bytes) {
    add("memory.limit_gb=auto", "lets the run take all of the card");
  }
  return list;
}

std::optional<Suggestion> CardRemedyRehearsal::larger_card() const {
  const bool own_would_do = needed_bytes() <= limit_with(request_.mode, std::nullopt).limit_bytes;
  if (request_.limit_gigabytes && own_would_do) return std::nullopt;
  return planner::larger_card(request_, plan_);
}

}  // namespace vlmtrain::planner
