#pragma once

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/engine/settings/step_layout.h"

namespace vlmtrain::planner {

/// The sizes of a micro-batch that determine its memory. All are sums over its samples, except for
/// max_sample_tokens.
struct MicroBatchSizes {
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t max_sample_tokens = 0;  ///< tokens of the longest sample
  int64_t label_tokens = 0;
  int64_t pixel_rows = 0;  ///< rows of data::Sample::pixel_values: tiles or patches
  int64_t masks = 0;
  int64_t num_images_with_masks = 0;

  bool operator==(const MicroBatchSizes&) const = default;

  /// Returns the sizes of a micro-batch with the samples of both.
  MicroBatchSizes merge(const MicroBatchSizes& other) const;
};

/// Returns the sizes of a micro-batch of one sample, or of several.
MicroBatchSizes compute_micro_batch_sizes(const data::SampleShape& shape);
MicroBatchSizes compute_micro_batch_sizes(std::span<const data::SampleShape> shapes);

/// A linear model of the peak memory of a micro-batch for one StepConfig, as an upper bound. It
/// includes memory that persists between steps: weights, gradients, optimizer state. All
/// coefficients are at least 0, so that adding a sample never lowers the bound. They are integers,
/// so that the bound is the same on every machine. learn_split_plan() fits them to dry runs.
struct MemoryCostTable {
  /// The variables of the model, computed from the sizes of a micro-batch.
  enum Term : size_t {
    kSamples,
    kTokens,
    kPaddedTokens,  ///< samples × max_sample_tokens: some kernels pad each sample to the longest one
    kLabelTokens,
    kLossRows,  ///< label tokens, at most the rows of a loss chunk
    kPixelRows,
    kVisionPassRows,  ///< pixel rows, at most vision_tiles_per_pass
    kMasks,
    kImagesWithMasks,
    kVisionPassImagesWithMasks,  ///< images with masks, at most vision_tiles_per_pass
    kNumTerms
  };

  int64_t base_bytes = 0;                                    ///< constant part of the bound
  std::array<int64_t, kNumTerms> bytes_per_1024_units = {};  ///< coefficients: bytes for 1,024 units of each term
  int64_t vision_tiles_per_pass = 0;                         ///< StepConfig::vision_tiles_per_pass
  int64_t loss_chunk_rows = engine::kDefaultLossChunkRows;   ///< StepConfig::loss_chunk_rows
  int64_t limit_bytes = 0;                                   ///< limit of a micro-batch with several samples
  int64_t max_samples = 0;                                   ///< limit of a micro-batch's samples; 0: no limit

  bool operator==(const MemoryCostTable&) const = default;

  /// Returns the value of each Term.
  std::array<int64_t, kNumTerms> compute_term_values(const MicroBatchSizes& sizes) const;
  /// Returns the bound for a micro-batch of these sizes.
  int64_t bytes(const MicroBatchSizes& sizes) const;
  /// Returns whether a micro-batch of these sizes is within limit_bytes and max_samples.
  bool fits(const MicroBatchSizes& sizes) const;

  nlohmann::ordered_json to_json() const;
  /// Parses the result of to_json(). Throws UserError (kBadData) that names `source`, the file.
  static MemoryCostTable from_json(const nlohmann::ordered_json& json, const std::string& source);
};

}  // namespace vlmtrain::planner
