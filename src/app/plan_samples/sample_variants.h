#pragma once

#include <string>
#include <vector>

#include "app/arguments/arguments.h"
#include "vlmtrain/data/shape.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::app {

/// One kind of the samples that flags describe.
struct SampleVariant {
  int64_t num_media = 0;  ///< beside a video or volumes
  double share = 1;       ///< of all samples
  data::SampleShape shape;
  int64_t original_tokens = 0;  ///< tokens that it would have had; 0: its media lose nothing (data.on_too_long)
  std::string rejection;        ///< why training would not take it; empty: it does
  int64_t required_max_length =
      0;  ///< that would take it, where data.max_length is the reason and can be raised; else 0
};

/// The kinds by images, ascending. Throws UserError (kUsage) for numbers that no sample has.
std::vector<SampleVariant> make_sample_variants(const SampleFlags& arguments, const train::Config& config);

}  // namespace vlmtrain::app
