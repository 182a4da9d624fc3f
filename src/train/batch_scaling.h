#pragma once

#include <cstdint>
#include <string>

#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Throws UserError (kUsage) where training.global_batch_tokens, batch_scaling, reference_batch_size and the rest of
/// the section do not go together.
void check_batch_scaling(const engine::TrainingOptions& training);

/// What all learning rates of a run are multiplied by, for its batch size against the reference's.
double compute_reference_lr_factor(const engine::TrainingOptions& training);

/// What the rates of one step are multiplied by besides, for its tokens against training.global_batch_tokens.
double compute_step_lr_factor(const engine::TrainingOptions& training, int64_t tokens);

/// A sentence for the log that says which rule holds and what comes of it; empty where none does.
std::string describe_batch_scaling(const engine::TrainingOptions& training);

}  // namespace vlmtrain::train
