#include "vlmtrain/report/metrics.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <system_error>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/report/json_lines.h"

namespace vlmtrain::report {

namespace {

/// Returns the lines of a file whose step is at most `last_step`, without truncated lines.
std::string read_lines_until_step(const std::filesystem::path& path, int64_t last_step) {
  std::ifstream file(path);
  std::string lines;
  for (std::string line; std::getline(file, line);) {
    const auto json = io::try_parse_json(line).value_or(nlohmann::json());
    if (json.is_object() && io::get_or<int64_t>(json, "step", last_step + 1, path.string()) <= last_step) {
      lines += line + "\n";
    }
  }
  return lines;
}

nlohmann::ordered_json tasks_to_json(const std::map<std::string, TaskMetrics>& tasks) {
  auto json = nlohmann::ordered_json::object();
  for (const auto& [name, task] : tasks) {
    json[name] = {{"loss", task.loss},
                  {"label_tokens", task.label_tokens},
                  {"samples", task.samples},
                  {"weight", task.weight},
                  {"accuracy", optional_to_json(task.accuracy)}};
    if (task.label_weight) json[name]["label_weight"] = *task.label_weight;
  }
  return json;
}

nlohmann::ordered_json score_to_json(const EvaluationScore& score) {
  nlohmann::ordered_json json{{"loss", score.loss},
                              {"label_tokens", score.label_tokens},
                              {"samples", score.samples},
                              {"exact_match", optional_to_json(score.exact_match)}};
  if (score.masks) json["masks"] = score.masks->to_json();
  if (!score.metrics.empty()) json["metrics"] = metrics_to_json(score.metrics);
  return json;
}

/// Returns the content of a file with `transform` applied to each line.
template <class Transform>
std::string transform_lines(const std::filesystem::path& path, const Transform& transform) {
  std::ifstream file(path);
  std::string text;
  for (std::string line; std::getline(file, line);) text += transform(line) + "\n";
  return text;
}

nlohmann::ordered_json evaluation_to_json(const EvaluationMetrics& evaluation) {
  auto json = score_to_json(evaluation.total);
  json["seconds"] = evaluation.seconds;
  json["batch_size"] = evaluation.batch_size;
  json["oom_splits"] = evaluation.num_oom_splits;
  json["is_best"] = evaluation.is_best;
  auto tasks = nlohmann::ordered_json::object();
  for (const auto& [name, score] : evaluation.tasks) tasks[name] = score_to_json(score);
  json["tasks"] = tasks;
  for (const auto& [name, masks] : evaluation.mask_metrics_by_structure) json["structures"][name] = masks.to_json();
  return json;
}

}  // namespace

nlohmann::ordered_json MaskMetrics::to_json() const {
  nlohmann::ordered_json json{{"masks", masks},
                              {"dice", dice},
                              {"iou", iou},
                              {"hausdorff95", optional_to_json(hausdorff95)},
                              {"empty_truths", num_empty_truths},
                              {"empty_predictions", num_empty_predictions}};
  io::add_field_aliases(json, {{"empty_predictions", "empty_drawn"}});
  return json;
}

nlohmann::ordered_json metrics_to_json(const AnswerMetrics& metrics) {
  auto json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : metrics) json[name] = optional_to_json(value);
  return json;
}

std::string EvaluationMetrics::to_json() const {
  return io::to_json_string(evaluation_to_json(*this));
}

std::string StepMetrics::to_json_line() const {
  // nlohmann::json writes numbers that are not finite as null.
  nlohmann::ordered_json json{{"step", step},
                              {"total_steps", total_steps},
                              {"epoch", epoch},
                              {"loss", loss},
                              {"learning_rate", learning_rate},
                              {"vision_learning_rate", optional_to_json(vision_learning_rate)},
                              {"projector_learning_rate", optional_to_json(projector_learning_rate)},
                              {"grad_norm", grad_norm},
                              {"skipped", skipped},
                              {"skipped_steps", num_skipped_steps},
                              {"loss_scale", optional_to_json(loss_scale)},
                              {"tokens", tokens},
                              {"label_tokens", label_tokens},
                              {"images", num_media},
                              {"samples", samples},
                              {"step_seconds", step_seconds},
                              {"data_wait_seconds", data_wait_seconds},
                              {"tokens_per_second", tokens_per_second()},
                              {"micro_batches", num_micro_batches},
                              {"micro_batch_sizes", micro_batch_sizes},
                              {"forecast_splits", num_look_ahead_splits},
                              {"oom_splits", num_oom_splits},
                              {"predicted_allocated_peak_bytes", optional_to_json(predicted_allocated_peak_bytes)},
                              {"predicted_peak_bytes", optional_to_json(predicted_reserved_peak_bytes)},
                              {"allocated_peak_bytes", allocated_peak_bytes},
                              {"reserved_peak_bytes", reserved_peak_bytes},
                              {"allocated_bytes", allocated_bytes},
                              {"reserved_bytes", reserved_bytes},
                              {"fragmentation_bytes", fragmentation_bytes()},
                              {"device_free_bytes", optional_to_json(device_free_bytes)},
                              {"host_bytes", host_bytes},
                              {"host_peak_bytes", host_peak_bytes},
                              {"tasks", tasks_to_json(tasks)}};
  io::add_field_aliases(json, {{"forecast_splits", "foreseen_splits"}});
  if (num_volumes > 0) json["volumes"] = num_volumes;
  if (label_weight) json["label_weight"] = *label_weight;
  if (mask_learning_rate) json["mask_learning_rate"] = *mask_learning_rate;
  if (loss_components) {
    json["loss_parts"] = {
        {"text", loss_components->text}, {"mask_bce", loss_components->bce}, {"mask_dice", loss_components->dice}};
  }
  if (!rank_wait_seconds.empty()) json["rank_wait_seconds"] = rank_wait_seconds;
  if (evaluation) json["evaluation"] = evaluation_to_json(*evaluation);
  return io::to_json_string(json);
}

void append_to_log_file(std::ofstream& file, std::string_view data, const std::filesystem::path& path) {
  file.write(data.data(), std::ssize(data)).flush();
  if (file) return;
  throw run_error("{}: cannot be written ({}); free disk space, or check the file system", path.string(),
                  std::generic_category().message(errno));
}

StepLog::StepLog(std::filesystem::path path, int64_t resumed_step) : path_(std::move(path)) {
  io::write_file(path_, std::filesystem::exists(path_) ? read_lines_until_step(path_, resumed_step) : "");
  file_.open(path_, std::ios::app);
}

void StepLog::set_line_field(int64_t step, const std::string& key, const std::string& json) {
  file_.close();
  io::write_file(path_, transform_lines(path_, [&](const std::string& line) {
                   auto entry = nlohmann::ordered_json::parse(line);
                   if (entry["step"] != step) return line;
                   entry[key] = nlohmann::ordered_json::parse(json);
                   return io::to_json_string(entry);
                 }));
  file_.open(path_, std::ios::app);
}

void StepLog::append(const std::string& json_line) {
  append_to_log_file(file_, json_line + '\n', path_);
}

const char* to_string(EventKind kind) {
  switch (kind) {
    case EventKind::kOomSplit:
      return "oom_split";
    case EventKind::kLookAheadSplit:
      return "foreseen_split";
    case EventKind::kAnomaly:
      return "anomaly";
    case EventKind::kSkippedStep:
      return "skipped_step";
    case EventKind::kMemoryGrowth:
      return "memory_growth";
    case EventKind::kMemoryFull:
      return "memory_full";
    case EventKind::kCacheEmptied:
      return "cache_emptied";
    case EventKind::kLookAhead:
      return "twin";
    case EventKind::kResumed:
      return "resumed";
    case EventKind::kSettingsChanged:
      return "changed";
    case EventKind::kFewerPredictions:
      return "fewer_answers";
    case EventKind::kCheckpoint:
      return "checkpoint";
    case EventKind::kStopped:
      return "stopped";
    case EventKind::kFailed:
      return "failed";
  }
  return "";
}

double get_unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string RunEvent::to_json_line() const {
  return io::to_json_string(nlohmann::ordered_json{
      {"step", step}, {"time", time}, {"kind", to_string(kind)}, {"message", message}, {"ids", ids}});
}

namespace {

/// Maximum number of tasks, since the names in the file are untrusted. A real data set has fewer.
constexpr size_t kMaxEpochTasks = 200;
/// Tolerance of rounding at an epoch's end, where the number of epochs is a sum of fractions.
constexpr double kEpochTolerance = 1e-9;

double count_complete_epochs(double epochs) {
  return std::floor(epochs + kEpochTolerance);
}

/// Returns a rate per second; null if no time was measured.
nlohmann::ordered_json rate_to_json(double count, double seconds) {
  return seconds > 0 ? nlohmann::ordered_json(count / seconds) : nlohmann::ordered_json();
}

}  // namespace

void EpochSummaries::LossSums::add(const nlohmann::json& values) {
  const int64_t tokens = get_integer_or_zero(values, "label_tokens");
  label_tokens += tokens;
  samples += get_integer_or_zero(values, "samples");
  const double mean = get_number_or_nan(values, "loss");
  if (!std::isfinite(mean) || tokens <= 0) return;
  const double weight = get_label_weight(values);
  loss += mean * weight;
  finite_loss_weight += weight;
}

nlohmann::ordered_json EpochSummaries::LossSums::mean_loss_to_json() const {
  return finite_loss_weight > 0 ? nlohmann::ordered_json(loss / finite_loss_weight) : nlohmann::ordered_json();
}

std::vector<nlohmann::ordered_json> EpochSummaries::add(const nlohmann::json& line) {
  const int64_t step = get_integer_or_zero(line, "step");
  const double epochs = get_number_or_nan(line, "epoch");
  if (step <= last_step_ || !std::isfinite(epochs)) return {};
  std::vector<nlohmann::ordered_json> rows;
  if (epochs + kEpochTolerance < num_completed_epochs_) {
    if (auto previous_row = make_current_epoch_row()) rows.push_back(std::move(*previous_row));
    epoch_sums_ = {};
    num_completed_epochs_ = 0;
  }
  last_step_ = step;
  accumulate(line);
  const double num_full_epochs = count_complete_epochs(epochs);
  const bool is_epoch_end = num_full_epochs > count_complete_epochs(num_completed_epochs_);
  num_completed_epochs_ = epochs;
  if (!is_epoch_end) return rows;
  rows.push_back(make_epoch_row(static_cast<int64_t>(num_full_epochs), /*is_complete=*/true));
  epoch_sums_ = {};
  return rows;
}

std::optional<nlohmann::ordered_json> EpochSummaries::make_current_epoch_row() const {
  if (epoch_sums_.steps == 0) return std::nullopt;
  return make_epoch_row(static_cast<int64_t>(count_complete_epochs(num_completed_epochs_)) + 1, /*is_complete=*/false);
}

void EpochSummaries::accumulate(const nlohmann::json& line) {
  if (epoch_sums_.steps++ == 0) epoch_sums_.first_step = last_step_;
  epoch_sums_.last_step = last_step_;
  epoch_sums_.total.add(line);
  if (const auto tasks = line.find("tasks"); tasks != line.end() && tasks->is_object()) {
    for (const auto& [name, values] : tasks->items()) {
      if (!values.is_object() || (epoch_sums_.tasks.size() >= kMaxEpochTasks && !epoch_sums_.tasks.contains(name)))
        continue;
      epoch_sums_.tasks[name].add(values);
    }
  }
  epoch_sums_.tokens += get_integer_or_zero(line, "tokens");
  epoch_sums_.num_oom_splits += get_integer_or_zero(line, "oom_splits");
  epoch_sums_.num_look_ahead_splits +=
      get_integer_or_zero(line, io::find_field_name(line, {"forecast_splits", "foreseen_splits"}));
  const auto skipped = line.find("skipped");
  if (skipped != line.end() && skipped->is_boolean() && skipped->get<bool>()) ++epoch_sums_.num_skipped_steps;
  if (const double seconds = get_number_or_nan(line, "step_seconds"); std::isfinite(seconds))
    epoch_sums_.seconds += seconds;
  const auto accumulate_memory = [&](EpochMemoryStats& memory, const char* peak, const char* mean) {
    // The kernel updates the peak later than the resident size.
    memory.peak = std::max({memory.peak, get_integer_or_zero(line, peak), get_integer_or_zero(line, mean)});
    memory.sum += static_cast<double>(get_integer_or_zero(line, mean));
  };
  accumulate_memory(epoch_sums_.allocated, "allocated_peak_bytes", "allocated_peak_bytes");
  accumulate_memory(epoch_sums_.reserved, "reserved_peak_bytes", "reserved_peak_bytes");
  accumulate_memory(epoch_sums_.host, "host_peak_bytes", "host_bytes");
  const auto evaluation = line.find("evaluation");
  epoch_sums_.evaluation = evaluation != line.end() && evaluation->is_object() ? *evaluation : nlohmann::json();
}

nlohmann::ordered_json EpochSummaries::make_epoch_row(int64_t epoch, bool is_complete) const {
  nlohmann::ordered_json row{{"step", epoch_sums_.last_step},
                             {"epoch", epoch},
                             {"complete", is_complete},
                             {"first_step", epoch_sums_.first_step},
                             {"last_step", epoch_sums_.last_step},
                             {"loss", epoch_sums_.total.mean_loss_to_json()}};
  auto tasks = nlohmann::ordered_json::object();
  for (const auto& [name, sum] : epoch_sums_.tasks) {
    tasks[name] = {{"loss", sum.mean_loss_to_json()}, {"samples", sum.samples}, {"label_tokens", sum.label_tokens}};
  }
  row["tasks"] = std::move(tasks);
  row["samples"] = epoch_sums_.total.samples;
  row["tokens"] = epoch_sums_.tokens;
  row["label_tokens"] = epoch_sums_.total.label_tokens;
  row["seconds"] = epoch_sums_.seconds;
  row["samples_per_second"] = rate_to_json(static_cast<double>(epoch_sums_.total.samples), epoch_sums_.seconds);
  row["tokens_per_second"] = rate_to_json(static_cast<double>(epoch_sums_.tokens), epoch_sums_.seconds);
  row["oom_splits"] = epoch_sums_.num_oom_splits;
  row["forecast_splits"] = epoch_sums_.num_look_ahead_splits;
  row["skipped_steps"] = epoch_sums_.num_skipped_steps;
  const auto add_memory_fields = [&](const std::string& name, const EpochMemoryStats& memory) {
    row[name + "_peak_bytes"] = memory.peak;
    row[name + "_mean_bytes"] = std::llround(memory.sum / static_cast<double>(epoch_sums_.steps));
  };
  add_memory_fields("allocated", epoch_sums_.allocated);
  add_memory_fields("reserved", epoch_sums_.reserved);
  add_memory_fields("host", epoch_sums_.host);
  row["evaluation"] = epoch_sums_.evaluation;
  io::add_field_aliases(row, {{"forecast_splits", "foreseen_splits"}});
  return row;
}

}  // namespace vlmtrain::report
