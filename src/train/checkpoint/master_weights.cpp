#include "train/checkpoint/master_weights.h"

#include <string>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/train/saved_settings.h"

namespace vlmtrain::train {

namespace {

const std::string kKey(keys::training::kMasterWeights);

bool has_bf16_weights(const engine::TrainingOptions& options) {
  return options.precision == engine::Precision::kBf16;
}

}  // namespace

void set_master_weights(const engine::TrainingOptions& options, bool is_cuda, nlohmann::ordered_json& fingerprint) {
  fingerprint[kKey] = engine::to_string(options.optimizer.choose_master_weights(is_cuda, has_bf16_weights(options)));
}

void resume_master_weights(const engine::TrainingOptions& options, nlohmann::ordered_json& saved,
                           nlohmann::ordered_json& current) {
  const auto fp32 = engine::to_string(engine::MasterWeights::kFp32);
  if (!saved.contains(kKey)) saved[kKey] = fp32;
  if (options.optimizer.master_weights) return;
  current[kKey] = has_bf16_weights(options) ? saved.at(kKey) : nlohmann::ordered_json(fp32);
}

engine::MasterWeights get_master_weights(const nlohmann::ordered_json& fingerprint) {
  const std::string text = format_setting_value(fingerprint, kKey);
  const auto master_weights = engine::parse_master_weights(text);
  VLMTRAIN_CHECK(master_weights, "unknown value of {}: {}", kKey, text);
  return *master_weights;
}

}  // namespace vlmtrain::train
