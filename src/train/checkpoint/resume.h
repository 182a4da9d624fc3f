#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include "vlmtrain/models/checkpoint_contents.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/run_changes.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

/// The state from which a run resumes.
struct ResumePoint {
  RunState state;                      ///< as saved
  std::vector<SettingChange> changes;  ///< of settings since the checkpoint
};

/// Reads the newest checkpoint's state and compares the settings with it. Throws UserError if
/// training.resume does not allow to resume, or does not allow the changes.
ResumePoint load_resume_point(const std::filesystem::path& checkpoint, const Config& config,
                              const nlohmann::ordered_json& fingerprint);

/// Restores the frozen weights of a resumed run: the base's values or, for parts that were trained
/// before they were frozen, the values of the newest checkpoint, which `base` takes from
/// `checkpoint_weights` (null: no such parts). `frozen_after_training` has the keys of those parts
/// (section `model`), `old_fingerprint` the settings of the checkpoint. Returns the updated keys.
/// Throws UserError (kUsage) for a part that is to be trained again although the run has no
/// trainable values of it. REQUIRES: `model` has the checkpoint's weights and is frozen as `config`
/// says.
std::vector<std::string> resume_freezing(const Config& config, const nlohmann::ordered_json& old_fingerprint,
                                         const std::vector<std::string>& frozen_after_training,
                                         const std::filesystem::path& checkpoint,
                                         const models::BaseWeights* checkpoint_weights, models::BaseWeights& base,
                                         models::VisionLanguageModel& model);

}  // namespace vlmtrain::train
