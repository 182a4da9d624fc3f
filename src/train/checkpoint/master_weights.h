#pragma once

#include <nlohmann/json.hpp>

#include "vlmtrain/engine/settings/options.h"
#include "vlmtrain/engine/settings/training_settings.h"

namespace vlmtrain::train {

// training.master_weights in the fingerprint of a run, which has the chosen format instead of `auto`.

/// Sets the format of a new run.
void set_master_weights(const engine::TrainingOptions& options, bool is_cuda, nlohmann::ordered_json& fingerprint);

/// Sets the format in the fingerprints of a checkpoint and of the run that resumes from it. Checkpoints
/// of older versions have fp32 masters and no key. `auto` becomes the format of the checkpoint.
void resume_master_weights(const engine::TrainingOptions& options, nlohmann::ordered_json& saved,
                           nlohmann::ordered_json& current);

/// Returns the format in a fingerprint.
engine::MasterWeights get_master_weights(const nlohmann::ordered_json& fingerprint);

}  // namespace vlmtrain::train
