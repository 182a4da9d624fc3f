#pragma once

#include <optional>
#include <vector>

#include "planner/estimate.h"
#include "planner/rehearsed_options.h"
#include "vlmtrain/planner/search.h"

namespace vlmtrain::planner {

std::vector<int64_t> divisors(int64_t number);  ///< ascending

/// The search for one set of fixed choices, with the batches that its plans must hold.
class OptionSearch {
 public:
  /// `rehearsed` and `workload` must outlive the search.
  OptionSearch(RehearsedOptions& rehearsed, const Workload& workload, const FixedChoices& fixed, int64_t limit_bytes);

  /// The fastest option that fits, rehearsed in full; nothing if none does.
  std::optional<Option> find();

  /// What needs least of all that a person could choose, rehearsed. After find().
  Option least();

  /// Every micro-batch size with nothing, as few as fit, and all blocks recomputed. After find().
  std::vector<Option> alternatives() const;

  const Estimate& estimate() const { return *estimate_; }

 private:
  void probe();
  Choices choices_at_defaults() const;
  Choices choices_at(int64_t size, size_t level) const;
  /// Smallest micro-batch, everything recomputed, the tower's tiles in so many passes, so many rows of the loss.
  Choices smallest(int64_t vision_passes, int64_t loss_chunk_rows) const;
  int64_t expected_bytes(const Choices& choices) const;
  double expected_seconds(const Choices& choices) const;
  std::optional<size_t> least_level(int64_t size) const;
  std::optional<Choices> next_guess() const;
  std::optional<Choices> least_untried() const;
  Option rehearse(const Choices& choices);
  std::optional<Choices> larger_that_may_fit(const Choices& choices) const;
  std::optional<Option> find_with_smaller_passes();
  std::vector<Choices> ever_smaller_passes() const;
  bool is_allowed(const Choices& choices) const;
  void rehearse_with_last_block_kept(Choices choices, memory::Component tower);
  Option known_or_estimated(const Choices& choices) const;

  RehearsedOptions& rehearsed_;
  const Workload& workload_;
  FixedChoices fixed_;
  int64_t limit_bytes_;
  int64_t standing_bytes_ = 0;                  // weights, gradients, optimizer
  std::vector<int64_t> sizes_;                  // ascending
  models::RecomputeBlocks blocks_;              // the model's
  std::vector<models::RecomputeBlocks> order_;  // from none to all
  std::optional<Option> least_;                 // where nothing fits without smaller passes
  std::optional<Estimate> estimate_;
};

}  // namespace vlmtrain::planner
