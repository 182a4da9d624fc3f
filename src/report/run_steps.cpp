#include "report/run_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "report/json_value.h"

namespace vlmtrain::report {

namespace {

/// More could not be told apart in a picture of usual width.
constexpr size_t kMostStretches = 1024;
constexpr size_t kRecentSteps = 20;
/// Each further task has its row, but no curve.
constexpr size_t kMostTaskCurves = 12;
constexpr size_t kMostTaskRows = 200;
/// Names of tasks come from outside; a run with more has something else in them.
constexpr size_t kMostTasks = 2000;

struct Number {
  const char* key;  // of the curve
  bool summed = false;
  const char* within = nullptr;  // the object that has it in the line; null: the line itself
  const char* name = nullptr;    // there; null: the key
};

constexpr Number kNumbers[] = {{"loss"},
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
                               {"foreseen_splits", true},
                               {"oom_splits", true}};

/// NaN where the line has none.
double value_in(const nlohmann::json& line, const Number& number) {
  const char* const name = number.name != nullptr ? number.name : number.key;
  if (number.within == nullptr) return number_in(line, name);
  const auto found = line.find(number.within);
  const bool is_there = found != line.end() && found->is_object();
  return is_there ? number_in(*found, name) : std::numeric_limits<double>::quiet_NaN();
}

double mean(const std::deque<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(values.size());
}

template <class T>
void push_recent(std::deque<T>& values, const T& value) {
  values.push_back(value);
  if (values.size() > kRecentSteps) values.pop_front();
}

}  // namespace

size_t RunSteps::stretch_of(int64_t step) {
  if (first_step_ == 0) first_step_ = step;
  while (static_cast<size_t>((step - first_step_) / width_) >= kMostStretches) {
    width_ *= 2;
    for (auto& curve : numbers_) curve.halve();
    for (auto& curve : specials_) curve.halve();
    for (auto& [name, task] : tasks_) {
      task.loss.halve();
      task.accuracy.halve();
      task.weight_curve.halve();
    }
  }
  return static_cast<size_t>((step - first_step_) / width_);
}

/// The newest line tells of the run since it was last started.
void RunSteps::add_waits(const nlohmann::json& line) {
  rank_wait_seconds_.clear();
  const auto waits = line.find("rank_wait_seconds");
  if (waits == line.end() || !waits->is_array()) return;
  for (const auto& seconds : *waits) rank_wait_seconds_.push_back(seconds.is_number() ? seconds.get<double>() : 0);
}

void RunSteps::add(const nlohmann::json& line) {
  const int64_t step = count_in(line, "step");
  if (step <= last_step_ || step > (int64_t{1} << 50)) return;  // not a line of this run
  const size_t stretch = stretch_of(step);
  static_assert(std::size(kNumbers) <= kMostNumbers);
  for (size_t i = 0; i < std::size(kNumbers); ++i) numbers_[i].add(stretch, value_in(line, kNumbers[i]));
  const double seconds = number_in(line, "step_seconds");
  if (seconds > 0) specials_[kDataWaitShare].add(stretch, number_in(line, "data_wait_seconds") / seconds, seconds);
  const auto skipped = line.find("skipped");
  if (skipped != line.end() && skipped->is_boolean()) specials_[kSkipped].add(stretch, skipped->get<bool>() ? 1 : 0);
  if (const auto sizes = line.find("micro_batch_sizes"); sizes != line.end() && sizes->is_array()) {
    for (const auto& size : *sizes) {
      if (size.is_number()) specials_[kMicroBatchSize].add(stretch, size.get<double>());
    }
  }
  if (const auto tasks = line.find("tasks"); tasks != line.end() && tasks->is_object()) {
    for (const auto& [name, values] : tasks->items()) {
      if (values.is_object()) add_task(stretch, name, values);
    }
  }

  add_waits(line);
  evaluations_.add(step, line);

  last_step_ = step;
  total_steps_ = std::max(count_in(line, "total_steps"), int64_t{0});
  epoch_ = number_in(line, "epoch");
  ++steps_;
  tokens_ += count_in(line, "tokens");
  label_tokens_ += count_in(line, "label_tokens");
  samples_ += count_in(line, "samples");
  images_ += count_in(line, "images");
  volumes_ += count_in(line, "volumes");
  oom_splits_ += count_in(line, "oom_splits");
  foreseen_splits_ += count_in(line, "foreseen_splits");
  skipped_steps_ = count_in(line, "skipped_steps");
  if (std::isfinite(seconds)) seconds_ += seconds;
  const auto rise = [&](int64_t& most, const char* key) { most = std::max(most, count_in(line, key)); };
  rise(allocated_peak_, "allocated_peak_bytes");
  rise(reserved_peak_, "reserved_peak_bytes");
  rise(predicted_allocated_peak_, "predicted_allocated_peak_bytes");
  rise(predicted_reserved_peak_, "predicted_peak_bytes");
  rise(host_peak_, "host_peak_bytes");
  push_recent(recent_, Recent{number_in(line, "loss"), number_in(line, "tokens"), seconds});
}

void RunSteps::add_task(size_t stretch, const std::string& name, const nlohmann::json& values) {
  auto found = tasks_.find(name);
  if (found == tasks_.end()) {
    if (tasks_.size() >= kMostTasks) return;
    found = tasks_.try_emplace(name).first;
  }
  Task& task = found->second;
  const int64_t label_tokens = count_in(values, "label_tokens");
  const double loss = number_in(values, "loss");
  const double accuracy = number_in(values, "accuracy");
  task.loss.add(stretch, loss, static_cast<double>(label_tokens));
  task.accuracy.add(stretch, accuracy, static_cast<double>(label_tokens));
  task.samples += count_in(values, "samples");
  task.label_tokens += label_tokens;
  const double weight = number_in(values, "weight");
  task.weight_moves =
      task.weight_moves || (!task.weight_curve.empty() && std::isfinite(weight) && weight != task.weight);
  task.weight = weight;
  task.weight_curve.add(stretch, weight);
  if (std::isfinite(loss)) push_recent(task.recent_loss, loss);
  if (std::isfinite(accuracy)) push_recent(task.recent_accuracy, accuracy);
}

std::vector<const std::pair<const std::string, RunSteps::Task>*> RunSteps::tasks_in_order() const {
  std::vector<const std::pair<const std::string, Task>*> tasks;
  for (const auto& entry : tasks_) tasks.push_back(&entry);
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const auto* a, const auto* b) { return a->second.label_tokens > b->second.label_tokens; });
  return tasks;
}

nlohmann::json RunSteps::summary() const {
  double loss = 0;
  double tokens = 0;
  double seconds = 0;
  int64_t finite = 0;
  int64_t timed = 0;
  // The first step of a run loads kernels: no measure of the others.
  const Recent* const first = std::ssize(recent_) == steps_ && steps_ > 1 ? &recent_.front() : nullptr;
  for (const auto& step : recent_) {
    if (std::isfinite(step.loss)) {
      loss += step.loss;
      ++finite;
    }
    if (&step != first && std::isfinite(step.seconds) && std::isfinite(step.tokens)) {
      tokens += step.tokens;
      seconds += step.seconds;
      ++timed;
    }
  }
  nlohmann::json summary{{"step", last_step_},
                         {"total_steps", total_steps_},
                         {"epoch", epoch_},
                         {"steps", steps_},
                         {"recent_steps", recent_.size()},
                         {"loss", nullptr},
                         {"tokens_per_second", nullptr},
                         {"step_seconds", nullptr},
                         {"tokens", tokens_},
                         {"label_tokens", label_tokens_},
                         {"samples", samples_},
                         {"images", images_},
                         {"volumes", volumes_},
                         {"oom_splits", oom_splits_},
                         {"foreseen_splits", foreseen_splits_},
                         {"skipped_steps", skipped_steps_},
                         {"seconds", seconds_},
                         {"allocated_peak_bytes", allocated_peak_},
                         {"reserved_peak_bytes", reserved_peak_},
                         {"predicted_allocated_peak_bytes", predicted_allocated_peak_},
                         {"predicted_peak_bytes", predicted_reserved_peak_},
                         {"host_peak_bytes", host_peak_}};
  if (!rank_wait_seconds_.empty()) {
    const auto [least, most] = std::ranges::minmax_element(rank_wait_seconds_);
    summary["ranks"] = rank_wait_seconds_.size();
    summary["slowest_rank"] = least - rank_wait_seconds_.begin();
    summary["waited_for_slowest_seconds"] = *most - *least;
  }
  if (finite > 0) summary["loss"] = loss / static_cast<double>(finite);
  if (seconds > 0) {
    summary["tokens_per_second"] = tokens / seconds;
    summary["step_seconds"] = seconds / static_cast<double>(timed);
  }
  return summary;
}

nlohmann::json RunSteps::tasks() const {
  auto rows = nlohmann::json::array();
  for (const auto* entry : tasks_in_order()) {
    const auto& [name, task] = *entry;
    if (rows.size() == kMostTaskRows) break;
    rows.push_back({{"name", name},
                    {"samples", task.samples},
                    {"label_tokens", task.label_tokens},
                    {"weight", task.weight},
                    {"loss", mean(task.recent_loss)},
                    {"accuracy", mean(task.recent_accuracy)}});
  }
  return rows;
}

std::string RunSteps::curves_json() const {
  const size_t stretches = first_step_ == 0 ? 0 : static_cast<size_t>((last_step_ - first_step_) / width_) + 1;
  std::string text =
      fmt::format("{{\"width\":{},\"first\":{},\"stretches\":{}", width_, std::max<int64_t>(1, first_step_), stretches);
  const auto add = [&](const char* key, const Curve& curve, bool summed) {
    if (!curve.empty()) text += fmt::format(",\"{}\":{}", key, curve.to_json(stretches, summed));
  };
  for (size_t i = 0; i < std::size(kNumbers); ++i) add(kNumbers[i].key, numbers_[i], kNumbers[i].summed);
  add("micro_batch_size", specials_[kMicroBatchSize], false);
  add("data_wait_share", specials_[kDataWaitShare], false);
  add("skipped", specials_[kSkipped], true);
  auto tasks = tasks_in_order();
  tasks.resize(std::min(tasks.size(), kMostTaskCurves));
  const auto add_list = [&](const char* key, Curve Task::*member) {
    text += fmt::format(",\"{}\":[", key);
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (i > 0) text += ',';
      text += (tasks[i]->second.*member).to_json(stretches);
    }
    text += ']';
  };
  add_list("task_loss", &Task::loss);
  add_list("task_accuracy", &Task::accuracy);
  if (std::ranges::any_of(tasks, [](const auto* task) { return task->second.weight_moves; })) {
    add_list("task_weight", &Task::weight_curve);
  }
  return text + "}";
}

}  // namespace vlmtrain::report
