#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include "vlmtrain/models/model.h"
#include "vlmtrain/models/weights_to_save.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/run_changes.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

/// Where a run goes on.
struct ResumePoint {
  RunState state;                      ///< as the checkpoint has it
  std::vector<SettingChange> changes;  ///< since then
};

/// Throws UserError: where training.resume forbids it, or the settings are others than training.resume allows.
ResumePoint load_resume_point(const std::filesystem::path& checkpoint, const Config& config,
                              const nlohmann::ordered_json& fingerprint);

/// Gives the frozen weights of a run that goes on the values that they have in it: those of the run's start, but of
/// parts that were trained before they were frozen (`frozen_after_training`, keys of the section `model`) those of the
/// run's newest checkpoint, which `base` takes over from `checkpoint_weights`, the checkpoint itself (null: there are
/// none). `old_fingerprint` is the fingerprint of the checkpoint, by which parts were frozen until now. Returns the
/// parts that are settled from now on. Throws UserError (kUsage) for a part that is to be trained again and has nothing
/// that could be. REQUIRES: `model` has the checkpoint's weights, and is frozen as `config` says.
std::vector<std::string> resume_freezing(const Config& config, const nlohmann::ordered_json& old_fingerprint,
                                         const std::vector<std::string>& frozen_after_training,
                                         const std::filesystem::path& checkpoint,
                                         const models::BaseWeights* checkpoint_weights, models::BaseWeights& base,
                                         models::VisionLanguageModel& model);

}  // namespace vlmtrain::train
