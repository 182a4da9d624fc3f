#pragma once

#include <string>
#include <vector>

#include "app/settings/arguments.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::app {

/// Samples of one size among those that the flags of `vlmtrain plan` describe.
struct SampleVariant {
  int64_t num_images = 0;   ///< number of images, without videos and volumes
  double share = 1;         ///< share of all samples, in (0, 1]
  data::SampleShape shape;  ///< the sizes as the model receives them, after images were shrunk
  /// Number of tokens before images were shrunk (data.on_too_long=shrink); 0 if they were not
  /// shrunk.
  int64_t num_original_tokens = 0;
  std::string rejection_reason;  ///< the reason for which training would reject the sample; empty if it accepts it
  /// The smallest data.max_length that accepts the sample, if data.max_length is the only reason
  /// for the rejection; else 0.
  int64_t required_max_length = 0;
};

/// Returns the variants by ascending number of images: one for each component of --image-mix, else
/// a single one. Their shares add up to 1. Reads the model's files in config.model.folder(). Throws
/// UserError (kUsage) for numbers that no sample can have.
std::vector<SampleVariant> make_sample_variants(const SampleFlags& flags, const train::Config& config);

}  // namespace vlmtrain::app
