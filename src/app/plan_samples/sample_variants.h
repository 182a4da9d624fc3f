#pragma once

#include <string>
#include <vector>

#include "app/arguments/arguments.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::app {

/// One type of the samples that flags describe.
struct SampleVariant {
  int64_t num_media = 0;  ///< images, in addition to a video or volumes
  double share = 1;       ///< of all samples
  data::SampleShape shape;
  int64_t original_tokens = 0;  ///< tokens before media were made smaller (data.on_too_long); 0: they were not
  std::string rejection;        ///< why training would reject it; empty: it does not
  int64_t required_max_length =
      0;  ///< data.max_length that would accept it, where that is the reason and can be raised; else 0
};

/// Returns the variants by ascending images. Throws UserError (kUsage) for numbers that no sample
/// can have.
std::vector<SampleVariant> make_sample_variants(const SampleFlags& arguments, const train::Config& config);

}  // namespace vlmtrain::app
