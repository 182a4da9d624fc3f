#pragma once

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vlmtrain/data/shape.h"
#include "vlmtrain/nn/fused_loss.h"
#include "vlmtrain/planner/dry_run.h"

namespace vlmtrain::planner {

/// What the memory of a micro-batch follows from: sums over its samples, and their longest.
struct MicroBatchSizes {
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t max_tokens = 0;  ///< tokens of the longest sample
  int64_t label_tokens = 0;
  int64_t pixel_rows = 0;
  int64_t masks = 0;
  int64_t mask_pictures = 0;

  bool operator==(const MicroBatchSizes&) const = default;

  MicroBatchSizes merge(const MicroBatchSizes& other) const;
};

MicroBatchSizes compute_sizes(const data::SampleShape& shape);
MicroBatchSizes compute_sizes(std::span<const data::SampleShape> shapes);

/// What a micro-batch takes at most while a step goes, all that lives between steps included, for one way to do a step.
/// A sum of what each unit of its sizes takes, learnt from rehearsals (planner/cost_learning.h). Adding a sample never
/// makes it less. In whole numbers: the same on every machine.
struct MemoryCostTable {
  /// Sizes that bytes are proportional to.
  enum Term : size_t {
    kSamples,
    kTokens,
    kPaddedTokens,  ///< samples × the longest one's tokens: some kernels keep a row of that length for each sample
    kLabelTokens,
    kLossRows,  ///< label tokens up to the rows of a loss chunk
    kPixelRows,
    kVisionPassRows,  ///< rows of pixels up to those of a vision pass
    kMasks,
    kMaskImages,
    kVisionPassImages,  ///< pictures that masks lie in, up to those of a vision pass
    kNumTerms
  };

  int64_t base_bytes = 0;
  std::array<int64_t, kNumTerms> bytes_per_1024 = {};   ///< of each term's units
  int64_t vision_tiles_per_pass = 0;                    ///< as Choices'
  int64_t loss_chunk_rows = nn::kDefaultLossChunkRows;  ///< as Choices'
  int64_t limit_bytes = 0;                              ///< that a micro-batch of several samples may take
  int64_t max_samples = 0;                              ///< in a micro-batch; 0: any number

  bool operator==(const MemoryCostTable&) const = default;

  std::array<int64_t, kNumTerms> compute_terms(const MicroBatchSizes& sizes) const;
  int64_t bytes(const MicroBatchSizes& sizes) const;
  bool fits(const MicroBatchSizes& sizes) const;

  nlohmann::ordered_json to_json() const;
  /// Throws UserError (kBadData) that names `source`.
  static MemoryCostTable from_json(const nlohmann::ordered_json& json, const std::string& source);
};

/// How a run cuts its steps, each for its own samples, and what that came to: into how many micro-batches go steps as
/// it draws them, and what do rehearsed ones take, which are some of these and some of the largest samples.
struct SplitPlan {
  MemoryCostTable table;
  int64_t num_sampled_steps = 0;
  double micro_batches_per_step = 0;       ///< of these, the mean
  int64_t max_micro_batches = 0;           ///< of one of them
  int64_t min_micro_batches = 0;           ///< of one of them
  double step_seconds = 0;                 ///< predicted, the mean of those rehearsed; 0 on the CPU
  double samples_per_second = 0;           ///< the same, of a rank; 0 on the CPU
  StepPeaks peaks = {};                    ///< over all rehearsed steps, one after another
  int64_t num_dry_run_steps = 0;           ///< of the drawn ones
  int64_t num_measured_micro_batches = 0;  ///< that the table was learnt from

  nlohmann::ordered_json to_json() const;
};

}  // namespace vlmtrain::planner
