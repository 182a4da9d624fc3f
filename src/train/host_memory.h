#pragma once

#include <cstdint>

#include "vlmtrain/models/model.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Throws UserError (kDoesNotFit) where a run on the CPU needs more than `limit_bytes` of the host's memory for
/// weights, gradients and optimizer states alone: what is trained is what asks for gradients. The model's values need
/// not be there yet.
void check_fits_host(const models::VisionLanguageModel& model, const Config& config, int64_t limit_bytes);

/// What decoded samples that wait for their step may take: a quarter of what is left. At least 1.
int64_t bytes_for_samples_ahead(int64_t limit_bytes, int64_t used_bytes);

}  // namespace vlmtrain::train
