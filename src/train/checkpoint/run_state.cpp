#include "vlmtrain/train/run_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/engine/settings/options.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/train/saved_settings.h"

namespace vlmtrain::train {

namespace {

// Field names are kept for compatibility, here and below: "lanes" are sources, "due" are their
// deficits, "basis" are comparison settings.
nlohmann::ordered_json to_json(const data::Cursor& cursor) {
  auto lanes = nlohmann::ordered_json::array();
  for (const data::EpochPosition& position : cursor.sources)
    lanes.push_back({{"epoch", position.epoch}, {"position", position.offset}});
  return {{"lanes", std::move(lanes)}, {"due", cursor.source_deficits}, {"batches", cursor.num_batches}};
}

nlohmann::ordered_json to_json(const EvaluationState& evaluation) {
  nlohmann::ordered_json json{{"basis", evaluation.comparison_settings},
                              {"without_improvement", evaluation.num_evaluations_without_improvement},
                              {"is_due", evaluation.is_due}};
  if (evaluation.best_step) json["best_step"] = *evaluation.best_step;
  if (evaluation.best_metric_value) json["best_value"] = *evaluation.best_metric_value;
  if (evaluation.best_step_loss) json["best_loss"] = *evaluation.best_step_loss;
  return json;
}

/// Throws UserError (kBadData) unless min_value <= value <= max_value. `key`: name of the field.
void check_value_range(std::string_view key, int64_t value, int64_t min_value, int64_t max_value,
                       const std::filesystem::path& path) {
  if (value >= min_value && value <= max_value) return;
  throw data_error(
      "{}: {} is {}, which is not from {} to {}: the file was changed or damaged; copy the checkpoint again, or move "
      "it away to resume from the previous one",
      path.string(), key, value, min_value, max_value);
}

/// Returns the value of `key`, a count, in the fingerprint; nullopt if it is missing or not a
/// number.
std::optional<int64_t> parse_fingerprint_count(const nlohmann::ordered_json& fingerprint, const char* key) {
  return parse_int_after_prefix("", format_setting_value(fingerprint, key));
}

/// Returns the maximum number of steps of a run with this fingerprint since its last change of
/// settings. The number in the fingerprint assumes that an epoch draws each sample once. It is no
/// bound if data.train repeats samples; engine::kMaxSteps is then.
int64_t compute_max_steps(const nlohmann::ordered_json& fingerprint) {
  const bool may_repeat_samples =
      format_setting_value(fingerprint, keys::data::kTrain).find("repeat") != std::string::npos;
  return may_repeat_samples ? engine::kMaxSteps
                            : parse_fingerprint_count(fingerprint, kTotalStepsKey).value_or(engine::kMaxSteps);
}

/// Checks all numbers of a state. Throws UserError (kBadData).
void check_run_state_ranges(const RunState& state, const std::filesystem::path& checkpoint,
                            const std::filesystem::path& path) {
  // Far above the values of any run, and far below values at which additions overflow.
  constexpr int64_t kMaxEpochs = int64_t{1} << 53;
  constexpr int64_t kMaxSamples = int64_t{1} << 53;
  check_value_range("changed_at", state.last_settings_change_step, 0, engine::kMaxSteps, path);
  // After a change of the data set, the run may make all epochs again.
  const int64_t steps =
      std::min(state.last_settings_change_step + compute_max_steps(state.fingerprint), engine::kMaxSteps);
  if (state.total_steps) check_value_range("total_steps", *state.total_steps, 1, steps, path);
  const auto folder_step = parse_checkpoint_step(checkpoint);
  if (folder_step && *folder_step != state.step) {
    throw data_error(
        "{}: step is {}, but the folder's name has {}: the file was changed, or the folder renamed; copy the "
        "checkpoint again, or move it away to resume from the previous one",
        path.string(), state.step, *folder_step);
  }
  check_value_range("step", state.step, state.last_settings_change_step, state.total_steps.value_or(steps), path);
  check_value_range("skipped_steps", state.num_skipped_steps, 0, state.step, path);
  check_value_range("schedule_start", state.schedule_start.step, 0, state.step, path);
  check_value_range("schedule_start_skipped", state.schedule_start.num_skipped_steps, 0,
                    std::min(state.schedule_start.step, state.num_skipped_steps), path);
  for (const data::EpochPosition& position : state.cursor.sources) {
    check_value_range("epoch", position.epoch, 0, kMaxEpochs, path);
    check_value_range("position", position.offset, 0,
                      parse_fingerprint_count(state.fingerprint, kSampleCountKey).value_or(kMaxSamples) - 1, path);
  }
  check_value_range("batches", state.cursor.num_batches, 0, engine::kMaxSteps, path);
  for (const double due : state.cursor.source_deficits) {
    if (std::isfinite(due)) continue;
    throw data_error("{}: due is not finite: the file was changed; copy the checkpoint again", path.string());
  }
}

/// Parses the cursor, also of checkpoints from before the field "cursor", which have one source.
/// `path`: file in messages.
data::Cursor parse_cursor(const nlohmann::ordered_json& json, int64_t step, const std::string& path) {
  const auto parse_epoch_position = [&](const nlohmann::ordered_json& position) {
    return data::EpochPosition{.epoch = io::get<int64_t>(position, "epoch", path),
                               .offset = io::get<int64_t>(position, "position", path)};
  };
  if (!json.contains("cursor"))
    return {.sources = {parse_epoch_position(json)}, .source_deficits = {0}, .num_batches = step};
  const auto& cursor = json["cursor"];
  data::Cursor result{.sources = {},
                      .source_deficits = io::get<std::vector<double>>(cursor, "due", path),
                      .num_batches = io::get<int64_t>(cursor, "batches", path)};
  const auto lanes = cursor.find("lanes");
  if (lanes == cursor.end() || !lanes->is_array() || lanes->size() != result.source_deficits.size()) {
    throw data_error("{}: cursor has no list of lanes with as many entries as due; copy the checkpoint again", path);
  }
  result.sources.reserve(lanes->size());
  for (const auto& position : *lanes) result.sources.push_back(parse_epoch_position(position));
  return result;
}

EvaluationState parse_evaluation_state(const nlohmann::ordered_json& json, int64_t step,
                                       const std::filesystem::path& path) {
  EvaluationState evaluation;
  if (json.is_null()) return evaluation;
  const auto source = fmt::format("{}: evaluation", path.string());
  const auto fail = [&](const std::string& problem) {
    throw data_error(
        "{}: {}: the file was changed or damaged; copy the checkpoint again, or move it away to resume from the "
        "previous one",
        source, problem);
  };
  if (!json.is_object()) fail(fmt::format("is {}, not an object", io::make_json_excerpt(json)));
  evaluation.comparison_settings = json.value("basis", nlohmann::ordered_json());
  evaluation.num_evaluations_without_improvement = io::get<int64_t>(json, "without_improvement", source);
  evaluation.is_due = io::get<bool>(json, "is_due", source);
  check_value_range("evaluation.without_improvement", evaluation.num_evaluations_without_improvement, 0, step, path);
  if (json.contains("best_step") != json.contains("best_value")) fail("has one of best_step and best_value");
  if (!json.contains("best_step")) return evaluation;
  evaluation.best_step = io::get<int64_t>(json, "best_step", source);
  evaluation.best_metric_value = io::get<double>(json, "best_value", source);
  check_value_range("evaluation.best_step", *evaluation.best_step, 1, step, path);
  if (!std::isfinite(*evaluation.best_metric_value)) fail("best_value is not finite");
  if (!json.contains("best_loss")) return evaluation;
  evaluation.best_step_loss = io::get<double>(json, "best_loss", source);
  if (!std::isfinite(*evaluation.best_step_loss)) fail("best_loss is not finite");
  return evaluation;
}

}  // namespace

std::filesystem::path get_trainer_state_folder(const std::filesystem::path& checkpoint) {
  return checkpoint / "trainer_state";
}

std::optional<int64_t> parse_checkpoint_step(const std::filesystem::path& folder) {
  return parse_int_after_prefix(kCheckpointNamePrefix, folder.filename().string());
}

std::string format_run_state(const RunState& state) {
  nlohmann::ordered_json json{{"step", state.step},
                              {"skipped_steps", state.num_skipped_steps},
                              {"cursor", to_json(state.cursor)},
                              {"fingerprint", state.fingerprint}};
  if (state.total_steps) json["total_steps"] = *state.total_steps;
  if (state.last_settings_change_step > 0) {
    json["changed_at"] = state.last_settings_change_step;
    json["schedule_start"] = state.schedule_start.step;
    json["schedule_start_skipped"] = state.schedule_start.num_skipped_steps;
    json["settled_parts"] = state.keys_frozen_after_training;
  }
  if (!state.task_balance_state.is_null()) json["task_balance"] = state.task_balance_state;
  if (!state.evaluation.comparison_settings.is_null()) json["evaluation"] = to_json(state.evaluation);
  if (!state.saved_host_plan.is_null()) json["host_memory"] = state.saved_host_plan;
  if (!state.saved_device_plan.is_null()) json["device_memory"] = state.saved_device_plan;
  return io::to_json_string(json, 2) + "\n";
}

RunState load_run_state(const std::filesystem::path& checkpoint) {
  const auto path = get_trainer_state_folder(checkpoint) / "state.json";
  const auto json = io::read_ordered_json(path);
  const auto get_number = [&](const char* key) { return io::get_or<int64_t>(json, key, 0, path.string()); };
  RunState state;
  state.step = io::get<int64_t>(json, "step", path.string());
  state.num_skipped_steps = get_number("skipped_steps");
  if (json.contains("total_steps")) state.total_steps = io::get<int64_t>(json, "total_steps", path.string());
  state.cursor = parse_cursor(json, state.step, path.string());
  state.last_settings_change_step = get_number("changed_at");
  state.schedule_start = {.step = get_number("schedule_start"),
                          .num_skipped_steps = get_number("schedule_start_skipped")};
  state.keys_frozen_after_training = io::get_or<std::vector<std::string>>(json, "settled_parts", {}, path.string());
  state.task_balance_state = json.value("task_balance", nlohmann::ordered_json());
  state.evaluation = parse_evaluation_state(json.value("evaluation", nlohmann::ordered_json()), state.step, path);
  state.saved_host_plan = json.value("host_memory", nlohmann::ordered_json());
  state.saved_device_plan = json.value("device_memory", nlohmann::ordered_json());
  state.fingerprint = json.value("fingerprint", nlohmann::ordered_json::object());
  if (!state.fingerprint.is_object()) {
    throw data_error("{}: fingerprint is {}, not a list of settings; copy the checkpoint again", path.string(),
                     io::make_json_excerpt(state.fingerprint));
  }
  check_run_state_ranges(state, checkpoint, path);
  return state;
}

}  // namespace vlmtrain::train
