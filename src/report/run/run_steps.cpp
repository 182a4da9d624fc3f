#include "report/run/run_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "vlmtrain/io/json.h"
#include "vlmtrain/report/json_lines.h"

namespace vlmtrain::report {

namespace {

/// Maximum number of bins. More cannot be distinguished in a chart of the usual width.
constexpr size_t kMaxCurveBins = 1024;
/// Steps whose mean the headline shows, since single steps vary. Not tuned.
constexpr size_t kNumRecentSteps = 20;
/// Tasks with curves; further tasks have table rows only. Not tuned.
constexpr size_t kMaxTaskCurves = 12;
constexpr size_t kMaxTaskRows = 200;
/// Maximum number of tasks, since the names in the file are untrusted. A real data set has fewer.
constexpr size_t kMaxTasks = 2000;

/// A curve and the position of its values in a line of metrics.jsonl.
struct CurveField {
  const char* key;                   // of the curve
  bool is_summed = false;            // the curve shows sums over steps instead of means
  const char* object_key = nullptr;  // key of the object that has the value; null: the line
  const char* field_name = nullptr;  // key of the value in that object; null: `key`
  const char* alias = nullptr;       // key of the value in lines of earlier versions; null: the same
};

constexpr io::FieldAlias kLookAheadSplitsField{"forecast_splits", "foreseen_splits"};

constexpr CurveField kCurveFields[] = {
    {"loss"},
    {"learning_rate"},
    {"vision_learning_rate"},
    {"projector_learning_rate"},
    {"mask_learning_rate"},
    {"loss_text", false, "loss_parts", "text"},
    {"loss_mask_bce", false, "loss_parts", "mask_bce"},
    {"loss_mask_dice", false, "loss_parts", "mask_dice"},
    {"grad_norm"},
    {"loss_scale"},
    {"tokens_per_second"},
    {"step_seconds"},
    {"micro_batches"},
    {"predicted_allocated_peak_bytes"},
    {"predicted_peak_bytes"},
    {"allocated_peak_bytes"},
    {"reserved_peak_bytes"},
    {"fragmentation_bytes"},
    {"device_free_bytes"},
    {"host_bytes"},
    {"host_peak_bytes"},
    {kLookAheadSplitsField.name, true, nullptr, nullptr, kLookAheadSplitsField.alias},
    {"oom_splits", true}};

/// Returns the value of the field; NaN if the line has none.
double get_field_value(const nlohmann::json& line, const CurveField& field) {
  const char* const name = field.field_name != nullptr ? field.field_name : field.key;
  if (field.alias != nullptr) return get_number_or_nan(line, io::find_field_name(line, {name, field.alias}));
  if (field.object_key == nullptr) return get_number_or_nan(line, name);
  const auto entry = line.find(field.object_key);
  const bool has_object = entry != line.end() && entry->is_object();
  return has_object ? get_number_or_nan(*entry, name) : std::numeric_limits<double>::quiet_NaN();
}

double compute_mean(const std::deque<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(values.size());
}

template <class T>
void push_recent_value(std::deque<T>& values, const T& value) {
  values.push_back(value);
  if (values.size() > kNumRecentSteps) values.pop_front();
}

}  // namespace

/// Returns the bin of a step. Doubles the width of the bins until there are at most kMaxCurveBins.
size_t RunSteps::assign_bin_index(int64_t step) {
  if (first_step_ == 0) first_step_ = step;
  while (static_cast<size_t>((step - first_step_) / steps_per_bin_) >= kMaxCurveBins) {
    steps_per_bin_ *= 2;
    for (auto& curve : curves_) curve.merge_bin_pairs();
    for (auto& curve : derived_curves_) curve.merge_bin_pairs();
    for (auto& [name, task] : tasks_) {
      task.loss.merge_bin_pairs();
      task.accuracy.merge_bin_pairs();
      task.weight_curve.merge_bin_pairs();
    }
  }
  return static_cast<size_t>((step - first_step_) / steps_per_bin_);
}

/// Replaces the waits by the values of the newest line, which are totals since the last start of
/// the run.
void RunSteps::set_rank_wait_seconds(const nlohmann::json& line) {
  rank_wait_seconds_.clear();
  const auto entry = line.find("rank_wait_seconds");
  if (entry == line.end() || !entry->is_array()) return;
  for (const auto& seconds : *entry) rank_wait_seconds_.push_back(seconds.is_number() ? seconds.get<double>() : 0);
}

void RunSteps::add(const nlohmann::json& line) {
  const int64_t step = get_integer_or_zero(line, "step");
  if (step <= last_step_ || step > (int64_t{1} << 50)) return;  // a line that was read already, or a damaged one
  const size_t bin = assign_bin_index(step);
  static_assert(std::size(kCurveFields) <= kMaxCurveFields);
  for (size_t i = 0; i < std::size(kCurveFields); ++i) curves_[i].add(bin, get_field_value(line, kCurveFields[i]));
  const double seconds = get_number_or_nan(line, "step_seconds");
  if (seconds > 0)
    derived_curves_[kDataWaitShare].add(bin, get_number_or_nan(line, "data_wait_seconds") / seconds, seconds);
  const auto skipped = line.find("skipped");
  if (skipped != line.end() && skipped->is_boolean())
    derived_curves_[kSkippedSteps].add(bin, skipped->get<bool>() ? 1 : 0);
  if (const auto sizes = line.find("micro_batch_sizes"); sizes != line.end() && sizes->is_array()) {
    for (const auto& size : *sizes) {
      if (size.is_number()) derived_curves_[kMicroBatchSize].add(bin, size.get<double>());
    }
  }
  if (const auto tasks = line.find("tasks"); tasks != line.end() && tasks->is_object()) {
    for (const auto& [name, values] : tasks->items()) {
      if (values.is_object()) add_task_values(bin, name, values);
    }
  }

  set_rank_wait_seconds(line);
  evaluations_.add(step, line);

  last_step_ = step;
  total_steps_ = std::max(get_integer_or_zero(line, "total_steps"), int64_t{0});
  epoch_ = get_number_or_nan(line, "epoch");
  ++num_recorded_steps_;
  num_tokens_ += get_integer_or_zero(line, "tokens");
  num_label_tokens_ += get_integer_or_zero(line, "label_tokens");
  num_samples_ += get_integer_or_zero(line, "samples");
  num_images_ += get_integer_or_zero(line, "images");
  num_volumes_ += get_integer_or_zero(line, "volumes");
  num_oom_splits_ += get_integer_or_zero(line, "oom_splits");
  num_look_ahead_splits_ += get_integer_or_zero(line, io::find_field_name(line, kLookAheadSplitsField));
  num_skipped_steps_ = get_integer_or_zero(line, "skipped_steps");
  if (std::isfinite(seconds)) total_step_seconds_ += seconds;
  const auto update_max = [&](int64_t& max, const char* key) { max = std::max(max, get_integer_or_zero(line, key)); };
  update_max(allocated_peak_bytes_, "allocated_peak_bytes");
  update_max(reserved_peak_bytes_, "reserved_peak_bytes");
  update_max(predicted_allocated_peak_bytes_, "predicted_allocated_peak_bytes");
  update_max(predicted_reserved_peak_bytes_, "predicted_peak_bytes");
  update_max(host_peak_bytes_, "host_peak_bytes");
  push_recent_value(recent_steps_,
                    RecentStep{get_number_or_nan(line, "loss"), get_number_or_nan(line, "tokens"), seconds});
}

void RunSteps::add_task_values(size_t bin, const std::string& name, const nlohmann::json& values) {
  auto entry = tasks_.find(name);
  if (entry == tasks_.end()) {
    if (tasks_.size() >= kMaxTasks) return;
    entry = tasks_.try_emplace(name).first;
  }
  Task& task = entry->second;
  const int64_t label_tokens = get_integer_or_zero(values, "label_tokens");
  const double loss = get_number_or_nan(values, "loss");
  const double accuracy = get_number_or_nan(values, "accuracy");
  task.loss.add(bin, loss, get_label_weight(values));
  task.accuracy.add(bin, accuracy, static_cast<double>(label_tokens));
  task.samples += get_integer_or_zero(values, "samples");
  task.label_tokens += label_tokens;
  const double weight = get_number_or_nan(values, "weight");
  task.has_weight_changes =
      task.has_weight_changes || (!task.weight_curve.empty() && std::isfinite(weight) && weight != task.weight);
  task.weight = weight;
  task.weight_curve.add(bin, weight);
  if (std::isfinite(loss)) push_recent_value(task.recent_losses, loss);
  if (std::isfinite(accuracy)) push_recent_value(task.recent_accuracies, accuracy);
}

/// Returns the tasks by decreasing label tokens.
std::vector<const std::pair<const std::string, RunSteps::Task>*> RunSteps::list_tasks_by_label_tokens() const {
  std::vector<const std::pair<const std::string, Task>*> tasks;
  for (const auto& entry : tasks_) tasks.push_back(&entry);
  std::stable_sort(tasks.begin(), tasks.end(), [](const auto* left, const auto* right) {
    return left->second.label_tokens > right->second.label_tokens;
  });
  return tasks;
}

nlohmann::json RunSteps::make_summary_json() const {
  double loss = 0;
  double tokens = 0;
  double seconds = 0;
  int64_t num_finite_losses = 0;
  int64_t num_timed_steps = 0;
  // The first step of a run loads kernels and does not represent the others.
  const RecentStep* const first =
      std::ssize(recent_steps_) == num_recorded_steps_ && num_recorded_steps_ > 1 ? &recent_steps_.front() : nullptr;
  for (const auto& step : recent_steps_) {
    if (std::isfinite(step.loss)) {
      loss += step.loss;
      ++num_finite_losses;
    }
    if (&step != first && std::isfinite(step.seconds) && std::isfinite(step.tokens)) {
      tokens += step.tokens;
      seconds += step.seconds;
      ++num_timed_steps;
    }
  }
  nlohmann::json summary{{"step", last_step_},
                         {"total_steps", total_steps_},
                         {"epoch", epoch_},
                         {"steps", num_recorded_steps_},
                         {"recent_steps", recent_steps_.size()},
                         {"loss", nullptr},
                         {"tokens_per_second", nullptr},
                         {"step_seconds", nullptr},
                         {"tokens", num_tokens_},
                         {"label_tokens", num_label_tokens_},
                         {"samples", num_samples_},
                         {"images", num_images_},
                         {"volumes", num_volumes_},
                         {"oom_splits", num_oom_splits_},
                         {"forecast_splits", num_look_ahead_splits_},
                         {"skipped_steps", num_skipped_steps_},
                         {"seconds", total_step_seconds_},
                         {"allocated_peak_bytes", allocated_peak_bytes_},
                         {"reserved_peak_bytes", reserved_peak_bytes_},
                         {"predicted_allocated_peak_bytes", predicted_allocated_peak_bytes_},
                         {"predicted_peak_bytes", predicted_reserved_peak_bytes_},
                         {"host_peak_bytes", host_peak_bytes_}};
  if (!rank_wait_seconds_.empty()) {
    const auto [min_wait, max_wait] = std::ranges::minmax_element(rank_wait_seconds_);
    summary["ranks"] = rank_wait_seconds_.size();
    summary["slowest_rank"] = min_wait - rank_wait_seconds_.begin();
    summary["waited_for_slowest_seconds"] = *max_wait - *min_wait;
  }
  if (num_finite_losses > 0) summary["loss"] = loss / static_cast<double>(num_finite_losses);
  if (seconds > 0) {
    summary["tokens_per_second"] = tokens / seconds;
    summary["step_seconds"] = seconds / static_cast<double>(num_timed_steps);
  }
  return summary;
}

nlohmann::json RunSteps::tasks_to_json() const {
  auto rows = nlohmann::json::array();
  for (const auto* entry : list_tasks_by_label_tokens()) {
    const auto& [name, task] = *entry;
    if (rows.size() == kMaxTaskRows) break;
    rows.push_back({{"name", name},
                    {"samples", task.samples},
                    {"label_tokens", task.label_tokens},
                    {"weight", task.weight},
                    {"loss", compute_mean(task.recent_losses)},
                    {"accuracy", compute_mean(task.recent_accuracies)}});
  }
  return rows;
}

std::string RunSteps::curves_to_json() const {
  const size_t num_bins = first_step_ == 0 ? 0 : static_cast<size_t>((last_step_ - first_step_) / steps_per_bin_) + 1;
  std::string text = fmt::format("{{\"width\":{},\"first\":{},\"bins\":{}", steps_per_bin_,
                                 std::max<int64_t>(1, first_step_), num_bins);
  const auto add = [&](const char* key, const Curve& curve, bool is_summed) {
    if (!curve.empty()) text += fmt::format(",\"{}\":{}", key, curve.to_json(num_bins, is_summed));
  };
  for (size_t i = 0; i < std::size(kCurveFields); ++i) add(kCurveFields[i].key, curves_[i], kCurveFields[i].is_summed);
  add("micro_batch_size", derived_curves_[kMicroBatchSize], false);
  add("data_wait_share", derived_curves_[kDataWaitShare], false);
  add("skipped", derived_curves_[kSkippedSteps], true);
  auto tasks = list_tasks_by_label_tokens();
  tasks.resize(std::min(tasks.size(), kMaxTaskCurves));
  const auto append_task_curves = [&](const char* key, Curve Task::*member) {
    text += fmt::format(",\"{}\":[", key);
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (i > 0) text += ',';
      text += (tasks[i]->second.*member).to_json(num_bins);
    }
    text += ']';
  };
  append_task_curves("task_loss", &Task::loss);
  append_task_curves("task_accuracy", &Task::accuracy);
  if (std::ranges::any_of(tasks, [](const auto* task) { return task->second.has_weight_changes; })) {
    append_task_curves("task_weight", &Task::weight_curve);
  }
  return text + "}";
}

namespace {

template <class GetValue>
std::string make_bin_values_json(const std::vector<CurveBin>& bins, size_t count, double missing_value,
                                 const GetValue& get_value) {
  std::string text = "[";
  for (size_t i = 0; i < count; ++i) {
    const bool has_value = i < bins.size() && bins[i].weight > 0;
    const double value = has_value ? get_value(bins[i]) : missing_value;
    if (i > 0) text += ',';
    if (std::isfinite(value)) {
      fmt::format_to(std::back_inserter(text), "{:.5g}", value);
    } else {
      text += "null";
    }
  }
  return text + "]";
}

}  // namespace

void CurveBin::add(double value, double value_weight) {
  sum += value * value_weight;
  weight += value_weight;
  min = std::min(min, value);
  max = std::max(max, value);
}

void CurveBin::add(const CurveBin& other) {
  sum += other.sum;
  weight += other.weight;
  min = std::min(min, other.min);
  max = std::max(max, other.max);
}

void Curve::add(size_t bin, double value, double weight) {
  if (!std::isfinite(value) || !(weight > 0)) return;
  if (bins_.size() <= bin) bins_.resize(bin + 1);
  bins_[bin].add(value, weight);
}

void Curve::merge_bin_pairs() {
  for (size_t i = 0; i < bins_.size(); ++i) {
    if (i % 2 == 1) {
      bins_[i / 2].add(bins_[i]);
    } else {
      bins_[i / 2] = bins_[i];
    }
  }
  bins_.resize((bins_.size() + 1) / 2);
}

std::string Curve::to_json(size_t num_bins, bool is_summed) const {
  if (is_summed) {
    return "{\"mean\":" + make_bin_values_json(bins_, num_bins, 0, [](const CurveBin& bin) { return bin.sum; }) + "}";
  }
  constexpr double kMissingValue = std::numeric_limits<double>::quiet_NaN();
  std::string text = "{\"mean\":" + make_bin_values_json(bins_, num_bins, kMissingValue,
                                                         [](const CurveBin& bin) { return bin.sum / bin.weight; });
  if (std::any_of(bins_.begin(), bins_.end(),
                  [](const CurveBin& bin) { return bin.weight > 0 && bin.min < bin.max; })) {
    text +=
        ",\"min\":" + make_bin_values_json(bins_, num_bins, kMissingValue, [](const CurveBin& bin) { return bin.min; });
    text +=
        ",\"max\":" + make_bin_values_json(bins_, num_bins, kMissingValue, [](const CurveBin& bin) { return bin.max; });
  }
  return text + "}";
}

}  // namespace vlmtrain::report
