#include "train/checkpoint/resume.h"

#include <algorithm>

#include "train/checkpoint/master_weights.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/models/base_weights.h"
#include "vlmtrain/models/checkpoint_contents.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/weights/parameters.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/saved_settings.h"

namespace vlmtrain::train {

ResumePoint load_resume_point(const std::filesystem::path& checkpoint, const Config& config,
                              nlohmann::ordered_json fingerprint) {
  if (config.resume_policy == ResumePolicy::kNever) {
    throw usage_error("{}: {} already contains a run ({}) and {} is never; choose another folder", keys::output::kDir,
                      checkpoint.parent_path().parent_path().string(), checkpoint.filename().string(),
                      keys::training::kResume);
  }
  ResumePoint resume_point{.state = load_run_state(checkpoint), .fingerprint = std::move(fingerprint), .changes = {}};
  resume_master_weights(config.training, resume_point.state.fingerprint, resume_point.fingerprint);
  resume_point.changes = find_setting_changes(resume_point.state.fingerprint, resume_point.fingerprint);
  check_setting_changes(resume_point.changes, config.resume_policy, checkpoint);
  return resume_point;
}

namespace {

/// A part of the model that a key freezes.
struct FreezablePart {
  std::string_view key;
  nn::Component component;
  bool models::FrozenParts::*is_frozen;
};

constexpr FreezablePart kFreezableParts[] = {
    {keys::model::kFreezeVisionTower, nn::Component::kVisionTower, &models::FrozenParts::vision_tower},
    {keys::model::kFreezeProjector, nn::Component::kProjector, &models::FrozenParts::projector},
    {keys::model::kFreezeLanguageModel, nn::Component::kLanguageModel, &models::FrozenParts::language_model},
    {keys::model::kFreezeMaskEncoder, nn::Component::kMaskEncoder, &models::FrozenParts::mask_encoder}};

/// Returns the parameters of `component` that the run trains unless they are frozen: all or, with
/// LoRA, those that are saved with the adapter.
std::vector<nn::Parameter> find_trainable_parameters(const models::VisionLanguageModel& model,
                                                     nn::Component component) {
  const bool has_lora = model.parameters().lora().has_value();
  std::vector<nn::Parameter> trainable_parameters;
  for (const auto& parameter : model.parameters().all()) {
    if (parameter.component == component && (!has_lora || parameter.is_saved_with_adapter()))
      trainable_parameters.push_back(parameter);
  }
  return trainable_parameters;
}

}  // namespace

std::vector<std::string> resume_freezing(const Config& config, const nlohmann::ordered_json& old_fingerprint,
                                         const std::vector<std::string>& keys_frozen_after_training,
                                         const std::filesystem::path& checkpoint,
                                         const models::BaseWeights* checkpoint_weights, models::BaseWeights& base,
                                         models::VisionLanguageModel& model) {
  const models::FrozenParts frozen = get_frozen_parts(config.model);
  models::FrozenParts previously_frozen_parts;
  std::vector<std::string> still_frozen_keys;
  for (const auto& [key, component, is_frozen] : kFreezableParts) {
    previously_frozen_parts.*is_frozen = format_setting_value(old_fingerprint, key) == "true";
    const auto parameters = find_trainable_parameters(model, component);
    const bool is_newly_frozen = frozen.*is_frozen && !(previously_frozen_parts.*is_frozen);
    const bool was_frozen_after_training =
        std::ranges::find(keys_frozen_after_training, key) != keys_frozen_after_training.end();
    if (is_newly_frozen || was_frozen_after_training) base.override_tensors(*checkpoint_weights, parameters);
    if (frozen.*is_frozen && (is_newly_frozen || was_frozen_after_training)) still_frozen_keys.emplace_back(key);
    if (!(frozen.*is_frozen) && previously_frozen_parts.*is_frozen && parameters.empty()) {
      throw usage_error(
          "{}: was true, is false, but the run has no adapters in that part; leave it true, or start a new run with {} "
          "in another {}",
          key, keys::lora::kRank, keys::output::kDir);
    }
  }
  if (model.parameters().lora()) return still_frozen_keys;
  // A part that is no longer frozen starts with the values of the base, like parts that remain
  // frozen. Both were frozen when the checkpoint was written.
  models::freeze_parts(model, previously_frozen_parts);
  models::restore_frozen_weights(model, checkpoint, base, static_cast<uint64_t>(config.training.seed));
  models::freeze_parts(model, frozen);
  return still_frozen_keys;
}

}  // namespace vlmtrain::train
