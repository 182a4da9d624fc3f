#include "planner/tried.h"

#include <algorithm>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

namespace {

constexpr size_t kSteps = 3;
constexpr int64_t kMostMicroBatches = 2;
/// More than any card has: address space costs nothing.
constexpr int64_t kUnlimitedBytes = int64_t{64} << 40;

}  // namespace

Tried::Tried(const Job& job, const TargetCard& card, const Workload& workload, int64_t limit_bytes)
    : job_(job),
      workload_(workload),
      limit_bytes_(limit_bytes),
      process_(job, {.gpu = std::string(card.gpu->name), .memory_bytes = kUnlimitedBytes}) {}

Outcome Tried::ask(const RehearsalRequest& request) {
  Outcome outcome = process_.rehearse(request);
  ++effort_.rehearsals;
  effort_.rehearsal_seconds += outcome.seconds;
  VLMTRAIN_CHECK(!outcome.out_of_memory, "a virtual card of {} bytes is full", kUnlimitedBytes);
  return outcome;
}

std::vector<SampleGroup> Tried::worst_samples(int64_t count) const {
  std::vector<SampleGroup> groups;
  for (int64_t i = 0; i < count; ++i) {
    const auto place = std::min(static_cast<size_t>(i), workload_.worst.size() - 1);
    const auto& shape = workload_.worst[place];
    if (!groups.empty() && groups.back().shape == shape) {
      ++groups.back().count;
    } else {
      groups.push_back({shape, 1});
    }
  }
  return groups;
}

int64_t Tried::micro_batches_rehearsed(const Choices& choices) const {
  return std::min(kMostMicroBatches, workload_.samples_per_rank() / choices.micro_batch_size);
}

double Tried::step_seconds(const Choices& choices, const StepCosts& costs) const {
  const auto micro_batches = static_cast<double>(workload_.samples_per_rank() / choices.micro_batch_size);
  const double each =
      (costs.total.seconds - costs.optimizer.seconds) / static_cast<double>(micro_batches_rehearsed(choices));
  return micro_batches * each + costs.optimizer.seconds;
}

double Tried::tokens_per_step() const {
  double tokens = 0;
  for (const auto& group : worst_samples(workload_.samples_per_rank())) {
    tokens += static_cast<double>(group.shape.tokens * group.count);
  }
  return tokens * static_cast<double>(workload_.world_size);
}

const Option* Tried::find(const Choices& choices) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.option.choices == choices; });
  return found == entries_.end() ? nullptr : &found->option;
}

Option Tried::rehearse(const Choices& choices) {
  if (const Option* const known = find(choices)) return *known;
  const int64_t samples = micro_batches_rehearsed(choices) * choices.micro_batch_size;
  Outcome outcome = ask({.choices = choices,
                         .steps = std::vector(kSteps, worst_samples(samples)),
                         .with_costs = true,
                         .with_detail = true,
                         .with_timeline = false});
  Option option{.choices = choices, .peaks = outcome.peaks()};
  option.step_seconds = step_seconds(choices, *outcome.costs);
  option.tokens_per_second = tokens_per_step() / option.step_seconds;
  option.fits = option.peaks.reserved_bytes <= limit_bytes_;
  option.rehearsed = true;
  entries_.push_back({option, std::move(outcome)});
  return entries_.back().option;
}

Outcome Tried::probe(const Choices& choices) {
  return ask({.choices = choices,
              .steps = {worst_samples(choices.micro_batch_size)},
              .with_costs = true,
              .with_detail = true,
              .with_timeline = false});
}

const Outcome& Tried::outcome_of(const Choices& choices, bool with_timeline) {
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& candidate) { return candidate.option.choices == choices; });
  VLMTRAIN_CHECK(entry != entries_.end(), "a plan that was not rehearsed");
  if (with_timeline && entry->outcome.detail->timeline.empty()) {
    const int64_t samples = micro_batches_rehearsed(choices) * choices.micro_batch_size;
    entry->outcome = ask({.choices = choices,
                          .steps = std::vector(kSteps, worst_samples(samples)),
                          .with_costs = true,
                          .with_detail = true,
                          .with_timeline = true});
  }
  return entry->outcome;
}

Outcome Tried::try_job(const Job& job, const Choices& choices, const data::SampleShape& shape) {
  process_.set_job(job);
  Outcome outcome = ask({.choices = choices,
                         .steps = std::vector(kSteps, std::vector{SampleGroup{shape, choices.micro_batch_size}}),
                         .with_costs = false,
                         .with_detail = false,
                         .with_timeline = false});
  process_.set_job(job_);
  return outcome;
}

}  // namespace vlmtrain::planner
