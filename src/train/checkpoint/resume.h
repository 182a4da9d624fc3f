#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include "vlmtrain/train/config.h"
#include "vlmtrain/train/run_checkpoint.h"
#include "vlmtrain/train/saved_settings.h"

namespace vlmtrain::models {
class BaseWeights;
class VisionLanguageModel;
}  // namespace vlmtrain::models

namespace vlmtrain::train {

/// The state from which a run resumes.
struct ResumePoint {
  RunState state;                      ///< as saved
  nlohmann::ordered_json fingerprint;  ///< the settings of this start
  std::vector<SettingChange> changes;  ///< settings that differ from the checkpoint's
};

/// Reads the state of `checkpoint` and compares `fingerprint`, the settings of this start, with the
/// settings in it. training.master_weights=auto becomes the value of the checkpoint. Throws UserError
/// (kUsage) if training.resume does not allow resuming or the changes, and kBadData for an invalid
/// state.
ResumePoint load_resume_point(const std::filesystem::path& checkpoint, const Config& config,
                              nlohmann::ordered_json fingerprint);

/// Restores the frozen weights of a resumed run. Most have the values of `base`. Parts that were
/// trained before they were frozen have the values of the newest checkpoint, which `base` then
/// takes from `checkpoint_weights`. `keys_frozen_after_training`: the keys (model.freeze_…) of
/// these parts before this start. `old_fingerprint`: the settings in `checkpoint`.
/// `checkpoint_weights` may be null if there are no such parts; otherwise it must outlive `base`.
///
/// Returns the updated keys_frozen_after_training. Throws UserError (kUsage) if a part is no longer
/// frozen but has no trainable parameters. REQUIRES: `model` has the weights of `checkpoint`, and
/// its frozen parts are those of `config`.
std::vector<std::string> resume_freezing(const Config& config, const nlohmann::ordered_json& old_fingerprint,
                                         const std::vector<std::string>& keys_frozen_after_training,
                                         const std::filesystem::path& checkpoint,
                                         const models::BaseWeights* checkpoint_weights, models::BaseWeights& base,
                                         models::VisionLanguageModel& model);

}  // namespace vlmtrain::train
