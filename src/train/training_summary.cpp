#include "vlmtrain/io/json_text.h"
#include "vlmtrain/train/trainer.h"

namespace vlmtrain::train {

std::string TrainingSummary::to_json() const {
  nlohmann::ordered_json json{{"stopped", stopped}, {"steps", steps}, {"last_loss", nullptr}, {"checkpoint", nullptr}};
  if (last_loss) json["last_loss"] = *last_loss;
  if (checkpoint) json["checkpoint"] = checkpoint->string();
  json["reserved_peak_bytes"] = reserved_peak_bytes;
  json["planned_peak_bytes"] = nullptr;
  if (planned_peak_bytes) json["planned_peak_bytes"] = *planned_peak_bytes;
  json["skipped_steps"] = skipped_steps;
  json["callback_seconds"] = callback_seconds;
  json["save_seconds"] = save_seconds;
  json["early_stopped"] = early_stopped;
  json["best_metric"] = best_metric.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(best_metric);
  json["best_step"] = best_step ? nlohmann::ordered_json(*best_step) : nlohmann::ordered_json();
  json["best_value"] = best_value ? nlohmann::ordered_json(*best_value) : nlohmann::ordered_json();
  json["best_checkpoint"] = nullptr;
  if (best_checkpoint) json["best_checkpoint"] = best_checkpoint->string();
  json["last_evaluation"] = nullptr;
  if (last_evaluation) json["last_evaluation"] = nlohmann::ordered_json::parse(last_evaluation->to_json());
  return io::to_json_string(json);
}

}  // namespace vlmtrain::train
