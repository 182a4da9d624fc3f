#include "vlmtrain/planner/search.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <set>

#include "planner/estimate.h"
#include "planner/suggest.h"
#include "planner/tried.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

namespace {

using models::RecomputeBlocks;

constexpr int64_t kMostGuesses = 16;
constexpr int64_t kDefaultLossChunkRows = 1024;
constexpr int64_t kSmallLossChunkRows = 128;

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> found;
  for (int64_t candidate = 1; candidate <= number; ++candidate) {
    if (number % candidate == 0) found.push_back(candidate);
  }
  return found;
}

void check(const Workload& workload, const FixedChoices& fixed) {
  if (workload.global_batch_size % workload.world_size != 0) {
    throw usage_error(
        "the global batch of {} samples cannot be shared equally by {} ranks; it is kept exactly, so choose a multiple "
        "of the ranks",
        workload.global_batch_size, workload.world_size);
  }
  const int64_t share = workload.samples_per_rank();
  if (fixed.micro_batch_size && share % *fixed.micro_batch_size != 0) {
    throw usage_error(
        "a micro-batch of {} does not divide the {} samples that a rank has of the global batch of {}; choose one of "
        "{}, "
        "or auto",
        *fixed.micro_batch_size, share, workload.global_batch_size, fmt::join(divisors(share), ", "));
  }
}

/// The search for one set of fixed choices.
class Search {
 public:
  Search(Tried& tried, const Workload& workload, const FixedChoices& fixed, int64_t limit_bytes)
      : tried_(tried), workload_(workload), fixed_(fixed), limit_bytes_(limit_bytes) {
    sizes_ = fixed.micro_batch_size ? std::vector{*fixed.micro_batch_size} : divisors(workload.samples_per_rank());
  }

  /// The fastest option that fits, rehearsed in full; nothing if none does.
  std::optional<Option> find() {
    probe();
    std::optional<Option> best;
    for (int64_t guesses = 0; guesses < kMostGuesses; ++guesses) {
      const auto guess = next_guess();
      if (!guess) break;
      const Option option = rehearse(*guess);
      if (!option.fits) continue;
      if (!best || option.step_seconds < best->step_seconds) best = option;
      if (next_guess() == guess) break;
    }
    if (!best) return find_with_smaller_passes();
    while (const auto larger = larger_that_may_fit(best->choices)) {
      const Option option = rehearse(*larger);
      if (!option.fits) break;
      best = option;
    }
    return best;
  }

  /// What needs least of all: one sample, everything recomputed, smallest passes.
  Option least() {
    Choices choices = smallest_passes();
    choices.micro_batch_size = sizes_.front();
    choices.recompute = order_.back();
    return tried_.rehearse(choices);
  }

  /// Every micro-batch size with nothing, as few as fit, and all blocks recomputed.
  std::vector<Option> alternatives() const {
    std::vector<Option> options;
    for (const int64_t size : sizes_) {
      std::set<size_t> levels{0, order_.size() - 1};
      if (const auto level = least_level(size)) levels.insert(*level);
      for (const size_t level : levels) options.push_back(known_or_estimated(choices_at(size, level)));
    }
    return options;
  }

  const Estimate& estimate() const { return *estimate_; }

 private:
  void probe() {
    Choices choices = choices_at_defaults();
    choices.micro_batch_size = 1;
    Probes probes;
    probes.one = tried_.probe(choices);
    const RehearsalDetail& detail = *probes.one.detail;
    const auto recomputing = [&](RecomputeBlocks blocks) {
      Choices changed = choices;
      changed.recompute = blocks;
      return tried_.probe(changed);
    };
    const bool has_images = tried_.worst().shapes.front().tiles > 0;
    if (has_images && detail.vision_blocks > 0) probes.vision = recomputing({detail.vision_blocks, 0});
    if (detail.language_blocks > 0) probes.language = recomputing({0, detail.language_blocks});
    if (workload_.samples_per_rank() > 1) {
      choices.micro_batch_size = 2;
      probes.two = tried_.probe(choices);
    }
    estimate_.emplace(probes);
    order_ = estimate_->recompute_order();
    if (!fixed_.recompute.is_auto()) {
      order_ = {{fixed_.recompute.blocks_of(detail.vision_blocks), fixed_.recompute.blocks_of(detail.language_blocks)}};
    }
  }

  Choices choices_at_defaults() const {
    return {.micro_batch_size = 1,
            .recompute = {},
            .vision_tiles_per_pass = fixed_.vision_tiles_per_pass.value_or(0),
            .loss_chunk_rows = fixed_.loss_chunk_rows.value_or(kDefaultLossChunkRows),
            .expandable_segments = fixed_.expandable_segments};
  }

  Choices choices_at(int64_t size, size_t level) const {
    Choices choices = choices_at_defaults();
    choices.micro_batch_size = size;
    choices.recompute = order_[level];
    return choices;
  }

  Choices smallest_passes() const {
    Choices choices = choices_at_defaults();
    if (!fixed_.vision_tiles_per_pass) choices.vision_tiles_per_pass = 1;
    if (!fixed_.loss_chunk_rows) choices.loss_chunk_rows = kSmallLossChunkRows;
    return choices;
  }

  int64_t expected_bytes(const Choices& choices) const {
    if (const Option* known = tried_.find(choices)) return known->peaks.reserved_bytes;
    return estimate_->reserved_bytes(choices.micro_batch_size, choices.recompute);
  }

  /// The fewest blocks with which a micro-batch is expected to fit.
  std::optional<size_t> least_level(int64_t size) const {
    for (size_t level = 0; level < order_.size(); ++level) {
      if (expected_bytes(choices_at(size, level)) <= limit_bytes_) return level;
    }
    return std::nullopt;
  }

  double expected_seconds(const Choices& choices) const {
    if (const Option* known = tried_.find(choices)) return known->step_seconds;
    const auto micro_batches = static_cast<double>(workload_.samples_per_rank() / choices.micro_batch_size);
    return micro_batches * estimate_->micro_batch_seconds(choices.micro_batch_size, choices.recompute) +
           estimate_->optimizer_seconds();
  }

  /// The fastest of what is expected to fit.
  std::optional<Choices> next_guess() const {
    std::optional<Choices> best;
    double best_seconds = std::numeric_limits<double>::infinity();
    for (const int64_t size : sizes_) {
      const auto level = least_level(size);
      if (!level) continue;
      const Choices choices = choices_at(size, *level);
      const double seconds = expected_seconds(choices);
      if (seconds < best_seconds) {
        best_seconds = seconds;
        best = choices;
      }
    }
    return best;
  }

  Option rehearse(const Choices& choices) {
    const Option option = tried_.rehearse(choices);
    estimate_->learn(choices.micro_batch_size, choices.recompute, option.peaks.reserved_bytes);
    return option;
  }

  /// The same choices with the next larger micro-batch, unless that is far from fitting.
  std::optional<Choices> larger_that_may_fit(const Choices& choices) const {
    const auto next = std::upper_bound(sizes_.begin(), sizes_.end(), choices.micro_batch_size);
    if (next == sizes_.end()) return std::nullopt;
    Choices larger = choices;
    larger.micro_batch_size = *next;
    constexpr double kClearlyTooLarge = 1.1;
    const bool hopeless =
        static_cast<double>(expected_bytes(larger)) > kClearlyTooLarge * static_cast<double>(limit_bytes_);
    return hopeless ? std::nullopt : std::optional{larger};
  }

  /// With the smallest micro-batch and everything recomputed, fewer tiles a pass and a smaller loss chunk.
  std::optional<Option> find_with_smaller_passes() {
    Choices choices = smallest_passes();
    choices.micro_batch_size = sizes_.front();
    choices.recompute = order_.back();
    std::optional<Option> best;
    for (int64_t tiles = tried_.worst().shapes.front().tiles * choices.micro_batch_size / 2; tiles >= 1; tiles /= 2) {
      if (!fixed_.vision_tiles_per_pass) choices.vision_tiles_per_pass = tiles;
      const Option option = tried_.rehearse(choices);
      if (option.fits) return option;
      if (fixed_.vision_tiles_per_pass) break;
    }
    return best;
  }

  Option known_or_estimated(const Choices& choices) const {
    if (const Option* known = tried_.find(choices)) return *known;
    Option option{.choices = choices, .peaks = {0, expected_bytes(choices)}};
    option.step_seconds = expected_seconds(choices);
    option.tokens_per_second = tried_.tokens_per_step(tried_.worst()) / option.step_seconds;
    option.fits = option.peaks.reserved_bytes <= limit_bytes_;
    return option;
  }

  Tried& tried_;
  const Workload& workload_;
  FixedChoices fixed_;
  int64_t limit_bytes_;
  std::vector<int64_t> sizes_;  // ascending
  std::vector<RecomputeBlocks> order_;
  std::optional<Estimate> estimate_;
};

/// The batch that needs most for its first sample; the search begins with it.
const SampleBatch& heaviest(Tried& tried, const std::vector<SampleBatch>& candidates, const Choices& choices) {
  size_t heaviest = 0;
  int64_t most = 0;
  for (size_t i = 0; candidates.size() > 1 && i < candidates.size(); ++i) {
    const int64_t bytes = tried.probe(choices, candidates[i]).peaks().reserved_bytes;
    if (bytes > most) heaviest = i;
    most = std::max(most, bytes);
  }
  return candidates[heaviest];
}

/// A batch that does not fit into a plan that was found without it; null if all do.
const SampleBatch* find_overlooked(Tried& tried, const Workload& workload, const Option& chosen, int64_t limit_bytes) {
  for (const auto& candidate : workload.candidates) {
    if (candidate.shapes == tried.worst().shapes) continue;
    if (tried.reserved_bytes(chosen.choices, candidate) > limit_bytes) return &candidate;
  }
  return nullptr;
}

}  // namespace

Plan make_plan(const PlanRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  check(request.workload, request.fixed);
  Plan plan;
  plan.model = request.model;
  plan.job = request.job;
  plan.workload = request.workload;
  plan.card = request.card;
  plan.limit = limit_of(request.card, request.mode, request.limit_gigabytes, request.workload.world_size);

  Tried tried(request.job, request.card, request.workload, plan.limit.limit_bytes);
  tried.hold(heaviest(tried, request.workload.candidates,
                      {.recompute = {}, .expandable_segments = request.fixed.expandable_segments}));
  std::optional<Search> search;
  for (size_t held = 1;; ++held) {
    search.emplace(tried, request.workload, request.fixed, plan.limit.limit_bytes);
    const auto found = search->find();
    plan.fits = found.has_value();
    plan.chosen = found ? *found : search->least();
    if (!plan.fits || held == request.workload.candidates.size()) break;
    const auto* const overlooked = find_overlooked(tried, request.workload, plan.chosen, plan.limit.limit_bytes);
    if (overlooked == nullptr) break;
    tried.hold(*overlooked);
  }
  plan.alternatives = search->alternatives();
  const Outcome& outcome = tried.outcome_of(plan.chosen.choices, request.with_timeline);
  plan.worst = tried.batch_of(plan.chosen.choices);
  plan.detail = *outcome.detail;
  plan.costs = *outcome.costs;
  plan.suggestions = plan.fits ? suggest_faster(plan, search->estimate()) : suggest_fitting(request, plan, tried);
  plan.effort = tried.effort();
  plan.effort.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return plan;
}

}  // namespace vlmtrain::planner
