#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vlmtrain/data/drawn_steps.h"
#include "vlmtrain/data/outlines.h"

namespace vlmtrain::planner {

/// Samples that may be together in a global batch.
struct SampleBatch {
  /// The largest first; at least one. Where there are fewer than a global batch, the last stands for the rest.
  std::vector<data::SampleShape> shapes;
  std::string first_sample_id;  ///< of the first sample; empty where the samples are hypothetical
};

/// How many samples a step has whose global batch counts packs.
struct PackedSamples {
  double samples_per_pack = 1;         ///< on average
  int64_t fixed_micro_batch_size = 0;  ///< that is fixed; 0: none
};

/// What the samples are that a plan has to hold.
struct Workload {
  /// One of these is the worst global batch: the samples with the most tokens, with the most tiles, with the most label
  /// tokens. Which one, rehearsals tell.
  std::vector<SampleBatch> candidates;
  int64_t global_batch_size = 16;  ///< of all ranks: samples, or packs
  int64_t world_size = 1;
  int64_t nodes = 1;                                   ///< machines with as many ranks each
  double network_gbit = 100;                           ///< 10⁹ bits a second from one of them to another
  std::optional<PackedSamples> packed = std::nullopt;  ///< where global_batch_size counts packs
  /// A rank's samples of a usual step, in order, of which a plan says what they take; empty: only the worst is known.
  std::vector<data::SampleShape> average{};
  /// The samples of some steps, by rank; empty where all are like the worst.
  std::vector<data::ShapesByRank> sampled_steps = {};

  /// Of a step. Of packs a number near their average that divides into micro-batches of the size that is fixed, or else
  /// of many sizes.
  int64_t samples_per_rank() const;
};

/// How many steps of so many samples a plan looks at: some dozens, fewer where they are large.
int64_t num_steps_to_sample(int64_t samples_per_step);

/// Of each of the workload's drawn steps the part of the rank that has the most tokens in it: the others wait for it.
/// Empty without drawn steps.
std::vector<std::vector<data::SampleShape>> find_heaviest_rank_steps(const Workload& workload);

struct SampledRankStep {
  int64_t rank = 0;
  int64_t step = 0;  ///< place in Workload::drawn
  std::vector<data::SampleShape> samples{};

  int64_t tokens() const;
};

/// For each rank that has any samples its part of a drawn step with the most tokens.
std::vector<SampledRankStep> find_largest_rank_steps(const Workload& workload);

/// Of each of the workload's worst batches the step of one rank, the last sample standing for those that it lacks.
std::vector<std::vector<data::SampleShape>> make_worst_steps(const Workload& workload);

/// The global batches that can be the worst that the samples of known shape make: the largest by tokens, by tiles and
/// by label tokens, each once. Of equal samples the first of the data set comes first. REQUIRES: a known shape.
std::vector<SampleBatch> find_worst_batches(const data::SampleIndex& samples, int64_t global_batch_size);

/// How many of `count` things each kind gets, in proportion to `shares` as far as whole numbers can: the method of the
/// largest remainder (Hamilton). Equal remainders go to the earlier kind. The sum is `count`.
/// REQUIRES: shares are not negative, and one is greater than 0.
std::vector<int64_t> apportion(std::span<const double> shares, int64_t count);

/// The kinds of that many things in an order in which each stretch has nearly the same shares: next comes the kind that
/// is furthest behind its share.
std::vector<size_t> interleave_evenly(std::span<const int64_t> counts);

}  // namespace vlmtrain::planner
