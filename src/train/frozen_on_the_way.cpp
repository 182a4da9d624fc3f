#include "train/frozen_on_the_way.h"

#include <algorithm>

#include "vlmtrain/base/error.h"
#include "vlmtrain/train/run_changes.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {

namespace {

struct Part {
  const char* key;
  nn::Component component;
  bool models::FrozenParts::*is_frozen;
};

constexpr Part kParts[] = {
    {"model.freeze_vision_tower", nn::Component::kVisionTower, &models::FrozenParts::vision_tower},
    {"model.freeze_projector", nn::Component::kProjector, &models::FrozenParts::projector},
    {"model.freeze_language_model", nn::Component::kLanguageModel, &models::FrozenParts::language_model},
    {"model.freeze_mask_encoder", nn::Component::kMaskEncoder, &models::FrozenParts::mask_encoder}};

/// That a run can train, as it is set up.
std::vector<nn::Parameter> parameters_of(const models::VisionLanguageModel& model, nn::Component component) {
  const bool has_lora = model.parameters().lora().has_value();
  std::vector<nn::Parameter> found;
  for (const auto& parameter : model.parameters().all()) {
    if (parameter.component == component && (!has_lora || parameter.goes_with_adapter())) found.push_back(parameter);
  }
  return found;
}

}  // namespace

std::vector<std::string> settle_frozen_parts(const Config& config, const nlohmann::ordered_json& before,
                                             const std::vector<std::string>& settled,
                                             const std::filesystem::path& newest, const models::BaseWeights* saved,
                                             models::BaseWeights& base, models::VisionLanguageModel& model) {
  const models::FrozenParts now = frozen_parts(config.model);
  models::FrozenParts then;
  std::vector<std::string> still_settled;
  for (const auto& [key, component, is_frozen] : kParts) {
    then.*is_frozen = text_in(before, key) == "true";
    const auto parameters = parameters_of(model, component);
    const bool is_newly_frozen = now.*is_frozen && !(then.*is_frozen);
    const bool was_settled = std::ranges::find(settled, key) != settled.end();
    if (is_newly_frozen || was_settled) base.take(*saved, parameters);
    if (now.*is_frozen && (is_newly_frozen || was_settled)) still_settled.emplace_back(key);
    if (!(now.*is_frozen) && then.*is_frozen && parameters.empty()) {
      throw usage_error(
          "{}: was true, is false, but the run's adapters have none in that part; leave it true, or begin a new run "
          "with lora.rank in another output.dir",
          key);
    }
  }
  if (model.parameters().lora()) return still_settled;
  // What is trained from now on begins with the values that it had while it was frozen.
  models::freeze(model, then);
  models::restore_frozen(model, newest, base, static_cast<uint64_t>(config.training.seed));
  models::freeze(model, now);
  return still_settled;
}

}  // namespace vlmtrain::train
