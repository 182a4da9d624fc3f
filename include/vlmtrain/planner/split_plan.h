#pragma once

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/engine/settings/step_layout.h"
#include "vlmtrain/nn/layers/losses.h"

namespace vlmtrain::planner {

/// The sizes of a micro-batch that determine its memory: sums over its samples, and a maximum.
struct MicroBatchSizes {
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t max_tokens = 0;  ///< of the longest sample
  int64_t label_tokens = 0;
  int64_t pixel_rows = 0;
  int64_t masks = 0;
  int64_t mask_images = 0;  ///< images that have masks

  bool operator==(const MicroBatchSizes&) const = default;

  /// Returns the sizes of the two micro-batches as one.
  MicroBatchSizes merge(const MicroBatchSizes& other) const;
};

/// Returns the sizes of a micro-batch of these samples.
MicroBatchSizes compute_sizes(const data::SampleShape& shape);
MicroBatchSizes compute_sizes(std::span<const data::SampleShape> shapes);

/// An upper bound of the peak memory of a micro-batch for one StepConfig, memory that persists between
/// steps included: a sum of terms, each proportional to a size. A further sample never lowers the
/// bound. Integers make it the same on every machine. SplitPlanLearner fits the table to dry runs.
struct MemoryCostTable {
  /// The sizes that memory is proportional to.
  enum Term : size_t {
    kSamples,
    kTokens,
    kPaddedTokens,  ///< samples × the longest sample's tokens: some kernels pad each sample to the longest
    kLabelTokens,
    kLossRows,  ///< label tokens, at most the rows of a loss chunk
    kPixelRows,
    kVisionPassRows,  ///< pixel rows, at most those of a vision pass
    kMasks,
    kMaskImages,
    kVisionPassImages,  ///< images with masks, at most those of a vision pass
    kNumTerms
  };

  int64_t base_bytes = 0;
  std::array<int64_t, kNumTerms> bytes_per_1024 = {};   ///< bytes for 1,024 units of each term
  int64_t vision_tiles_per_pass = 0;                    ///< StepConfig::vision_tiles_per_pass
  int64_t loss_chunk_rows = nn::kDefaultLossChunkRows;  ///< StepConfig::loss_chunk_rows
  int64_t limit_bytes = 0;                              ///< of a micro-batch with several samples
  int64_t max_samples = 0;                              ///< of a micro-batch; 0: no limit

  bool operator==(const MemoryCostTable&) const = default;

  std::array<int64_t, kNumTerms> compute_terms(const MicroBatchSizes& sizes) const;
  int64_t bytes(const MicroBatchSizes& sizes) const;
  /// Returns whether a micro-batch of these sizes is within limit_bytes and max_samples.
  bool fits(const MicroBatchSizes& sizes) const;

  nlohmann::ordered_json to_json() const;
  /// Reads what to_json() wrote. Throws UserError (kBadData) that names `source`.
  static MemoryCostTable from_json(const nlohmann::ordered_json& json, const std::string& source);
};

/// The peak memory of a step.
struct StepPeaks {
  int64_t allocated_bytes = 0;
  int64_t reserved_bytes = 0;
};

/// The table by which a run splits each step into micro-batches, with statistics of sampled steps.
struct SplitPlan {
  MemoryCostTable table;
  int64_t num_sampled_steps = 0;
  double micro_batches_per_step = 0;       ///< mean over the sampled steps
  int64_t max_micro_batches = 0;           ///< of a sampled step
  int64_t min_micro_batches = 0;           ///< of a sampled step
  double step_seconds = 0;                 ///< predicted, mean over the dry-run steps; 0 on the CPU
  double samples_per_second = 0;           ///< predicted, of one rank; 0 on the CPU
  StepPeaks peaks = {};                    ///< maximum over the dry-run steps, which include the largest samples
  int64_t num_dry_run_steps = 0;           ///< of the sampled steps
  int64_t num_measured_micro_batches = 0;  ///< that the table was fitted to

  nlohmann::ordered_json to_json() const;
};

/// Splits the samples of a step into as few micro-batches as it finds that each fit `table`.
///
/// Takes the best of first-fit and best-fit decreasing by each size, searches briefly for fewer
/// micro-batches if a lower bound allows them, and then balances them. A unit of `rule` that does not fit
/// alone becomes a micro-batch of its own. The largest micro-batches come first, and samples keep their
/// order within one. If an equal split in order needs as few micro-batches and no more memory, it is
/// returned instead.
///
/// A pure function of its arguments with the same result on every machine.
engine::MicroBatchSplit split_by_memory(std::span<const data::SampleShape> shapes, const MemoryCostTable& table,
                                        const engine::SplitConstraint& rule = {});

}  // namespace vlmtrain::planner
