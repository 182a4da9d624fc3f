#include "report/run/run_evaluations.h"

#include <algorithm>
#include <cmath>

#include "vlmtrain/io/json.h"
#include "vlmtrain/report/json_lines.h"

namespace vlmtrain::report {

namespace {

/// Maximum number of points. More cannot be distinguished in a chart of the usual width.
constexpr size_t kMaxEvaluationPoints = 1024;
/// Limits for tasks and structures, whose names in the file are untrusted. A real data set has
/// fewer.
constexpr size_t kMaxEvaluatedTasks = 200;
constexpr size_t kMaxStructures = 200;
constexpr size_t kMaxNameBytes = 200;
/// Limit for the metrics of answers. eval.metrics has fewer.
constexpr size_t kMaxMetrics = 20;
/// Tasks or structures with curves, as many as tasks with training curves (kMaxTaskCurves). The
/// others have table rows only.
constexpr size_t kMaxEvaluationCurves = 12;

/// Returns the value with five significant digits, which keeps pages with thousands of points
/// small; null if it is not finite.
nlohmann::json round_to_significant_digits(double value) {
  if (!std::isfinite(value) || value == 0) return std::isfinite(value) ? nlohmann::json(0) : nlohmann::json();
  const double unit = std::pow(10.0, 4 - std::floor(std::log10(std::abs(value))));
  return std::isfinite(unit) && unit > 0 ? std::round(value * unit) / unit : value;
}

}  // namespace

RunEvaluations::Scores RunEvaluations::parse_scores(const nlohmann::json& values) {
  return {get_number_or_nan(values, "loss"), get_number_or_nan(values, "exact_match"), parse_mask_summary(values).dice};
}

/// Sets the newest metrics of the answers of all tasks and samples.
void RunEvaluations::add_metrics(const nlohmann::json& evaluation) {
  newest_metrics_.clear();
  const auto add = [this](const std::string& task, const nlohmann::json& scores) {
    const auto metrics = scores.find("metrics");
    if (metrics == scores.end() || !metrics->is_object() || newest_metrics_.size() > kMaxEvaluatedTasks) return;
    TaskMetricValues row{.task = truncate_utf8(task, kMaxNameBytes), .values = {}};
    for (const auto& [name, value] : metrics->items()) {
      if (value.is_number() && row.values.size() < kMaxMetrics)
        row.values[truncate_utf8(name, kMaxNameBytes)] = value.get<double>();
    }
    newest_metrics_.push_back(std::move(row));
  };
  if (!evaluation.contains("metrics")) return;
  if (const auto tasks = evaluation.find("tasks"); tasks != evaluation.end() && tasks->is_object()) {
    for (const auto& [task, scores] : tasks->items()) {
      if (scores.is_object()) add(task, scores);
    }
  }
  add("", evaluation);
}

RunEvaluations::MaskSummary RunEvaluations::parse_mask_summary(const nlohmann::json& values) {
  const auto entry = values.find("masks");
  if (entry == values.end() || !entry->is_object()) return {};
  return {get_integer_or_zero(*entry, "masks"),
          get_number_or_nan(*entry, "dice"),
          get_number_or_nan(*entry, "iou"),
          get_number_or_nan(*entry, "hausdorff95"),
          get_integer_or_zero(*entry, "empty_truths"),
          get_integer_or_zero(*entry, io::find_field_name(*entry, {"empty_predictions", "empty_drawn"}))};
}

nlohmann::json RunEvaluations::mask_summary_to_json(const MaskSummary& masks) {
  return {{"masks", masks.num_masks},
          {"dice", masks.dice},
          {"iou", masks.iou},
          {"hausdorff95", masks.hausdorff95},
          {"empty_truths", masks.num_empty_truths},
          {"empty_predictions", masks.num_empty_predictions}};
}

void RunEvaluations::add_structure_scores(const nlohmann::json& evaluation, EvaluationPoint& point) {
  for (auto& structure : structures_) structure.newest_summary = {};
  const auto entry = evaluation.find("structures");
  if (entry == evaluation.end() || !entry->is_object()) return;
  for (const auto& [full_name, values] : entry->items()) {
    if (!values.is_object()) continue;
    const std::string name = truncate_utf8(full_name, kMaxNameBytes);
    auto structure = std::ranges::find(structures_, name, &Structure::name);
    if (structure == structures_.end()) {
      if (structures_.size() == kMaxStructures) continue;
      structure = structures_.insert(structure, Structure{.name = name});
    }
    structure->newest_summary = parse_mask_summary(nlohmann::json{{"masks", values}});
    const auto index = static_cast<size_t>(structure - structures_.begin());
    point.dice_by_structure.resize(std::max(point.dice_by_structure.size(), index + 1),
                                   std::numeric_limits<double>::quiet_NaN());
    point.dice_by_structure[index] = structure->newest_summary.dice;
  }
}

/// Returns the index of the task, which is added if it is new; the number of tasks if there are too
/// many.
size_t RunEvaluations::find_or_add_task(const std::string& name) {
  const auto entry = std::ranges::find(tasks_, name, &Task::name);
  if (entry == tasks_.end() && tasks_.size() < kMaxEvaluatedTasks) {
    tasks_.push_back({.name = name});
    return tasks_.size() - 1;
  }
  return static_cast<size_t>(entry - tasks_.begin());
}

void RunEvaluations::add(int64_t step, const nlohmann::json& line) {
  const auto entry = line.find("evaluation");
  if (entry == line.end() || !entry->is_object()) return;
  const auto& evaluation = *entry;
  EvaluationPoint point{.step = step, .number = num_evaluations_++, .total = parse_scores(evaluation)};
  if (const auto tasks = evaluation.find("tasks"); tasks != evaluation.end() && tasks->is_object()) {
    for (const auto& [name, values] : tasks->items()) {
      if (!values.is_object()) continue;
      const size_t index = find_or_add_task(name);
      if (index == tasks_.size()) continue;
      point.tasks.resize(std::max(point.tasks.size(), index + 1));
      point.tasks[index] = parse_scores(values);
      tasks_[index].label_tokens = get_integer_or_zero(values, "label_tokens");
    }
  }
  newest_mask_summary_ = parse_mask_summary(evaluation);
  add_metrics(evaluation);
  add_structure_scores(evaluation, point);
  const double seconds = get_number_or_nan(evaluation, "seconds");
  if (std::isfinite(seconds)) total_evaluation_seconds_ += seconds;
  num_oom_splits_ += get_integer_or_zero(evaluation, "oom_splits");
  newest_evaluation_seconds_ = seconds;
  newest_batch_size_ = get_integer_or_zero(evaluation, "batch_size");
  newest_num_samples_ = get_integer_or_zero(evaluation, "samples");
  const auto is_best = evaluation.find("is_best");
  if (is_best != evaluation.end() && is_best->is_boolean() && is_best->get<bool>()) best_point_ = point;
  newest_point_ = point;
  if (point.number % evaluation_stride_ != 0) return;
  evaluation_points_.push_back(std::move(point));
  if (evaluation_points_.size() <= kMaxEvaluationPoints) return;
  evaluation_stride_ *= 2;
  std::erase_if(evaluation_points_,
                [this](const EvaluationPoint& other) { return other.number % evaluation_stride_ != 0; });
}

/// Returns the kept points, the best and the newest in ascending order of their steps.
std::vector<const RunEvaluations::EvaluationPoint*> RunEvaluations::list_evaluation_points() const {
  std::vector<const EvaluationPoint*> points;
  for (const auto& point : evaluation_points_) points.push_back(&point);
  for (const auto* extra_point : {&best_point_, &newest_point_}) {
    if (!*extra_point) continue;
    const auto index = std::ranges::lower_bound(points, (*extra_point)->step, {}, &EvaluationPoint::step);
    if (index == points.end() || (*index)->step != (*extra_point)->step) points.insert(index, &**extra_point);
  }
  return points;
}

/// Adds the values of masks to the result of to_json(). Does nothing without masks.
void RunEvaluations::append_masks_json(nlohmann::json& json) const {
  const auto points = list_evaluation_points();
  const auto make_list = [&](const auto& get_value) {
    auto values = nlohmann::json::array();
    for (const auto* point : points) values.push_back(round_to_significant_digits(get_value(*point)));
    return values;
  };
  if (std::ranges::none_of(points, [](const EvaluationPoint* point) { return std::isfinite(point->total.dice); }))
    return;
  json["dice"] = make_list([](const EvaluationPoint& point) { return point.total.dice; });
  json["masks"] = mask_summary_to_json(newest_mask_summary_);
  json["newest"]["dice"] = newest_point_->total.dice;
  if (best_point_) json["best"]["dice"] = best_point_->total.dice;

  std::vector<size_t> order(structures_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, std::greater<>(),
                           [this](size_t index) { return structures_[index].newest_summary.num_masks; });
  auto& structures = json["structures"] = nlohmann::json::array();
  for (const size_t index : order) {
    auto structure = mask_summary_to_json(structures_[index].newest_summary);
    structure["name"] = structures_[index].name;
    if (structures.size() < kMaxEvaluationCurves) {
      structure["dice_curve"] = make_list([index](const EvaluationPoint& point) {
        return index < point.dice_by_structure.size() ? point.dice_by_structure[index]
                                                      : std::numeric_limits<double>::quiet_NaN();
      });
    }
    structures.push_back(std::move(structure));
  }
}

nlohmann::json RunEvaluations::to_json() const {
  if (!newest_point_) return {};
  const auto points = list_evaluation_points();
  const auto make_list = [&](const auto& get_value) {
    auto values = nlohmann::json::array();
    for (const auto* point : points) values.push_back(round_to_significant_digits(get_value(*point)));
    return values;
  };
  const auto make_headline_json = [](const EvaluationPoint& point) {
    return nlohmann::json{{"step", point.step}, {"loss", point.total.loss}, {"exact_match", point.total.exact_match}};
  };
  auto newest_json = make_headline_json(*newest_point_);
  newest_json["seconds"] = newest_evaluation_seconds_;
  newest_json["batch_size"] = newest_batch_size_;
  newest_json["samples"] = newest_num_samples_;
  auto steps = nlohmann::json::array();
  for (const auto* point : points) steps.push_back(point->step);

  std::vector<size_t> order(tasks_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, std::greater<>(), [this](size_t index) { return tasks_[index].label_tokens; });
  auto tasks = nlohmann::json::array();
  for (const size_t index : order) {
    const auto get_task_score = [index](const EvaluationPoint& point) {
      return index < point.tasks.size() ? point.tasks[index] : Scores();
    };
    nlohmann::json task{{"name", tasks_[index].name},
                        {"newest_loss", get_task_score(*newest_point_).loss},
                        {"newest_exact_match", get_task_score(*newest_point_).exact_match}};
    if (tasks.size() < kMaxEvaluationCurves) {
      task["loss"] = make_list([&](const EvaluationPoint& point) { return get_task_score(point).loss; });
      task["exact_match"] = make_list([&](const EvaluationPoint& point) { return get_task_score(point).exact_match; });
    }
    tasks.push_back(std::move(task));
  }
  nlohmann::json json{{"count", num_evaluations_},
                      {"seconds", total_evaluation_seconds_},
                      {"oom_splits", num_oom_splits_},
                      {"best", best_point_ ? make_headline_json(*best_point_) : nlohmann::json()},
                      {"newest", std::move(newest_json)},
                      {"steps", std::move(steps)},
                      {"loss", make_list([](const EvaluationPoint& point) { return point.total.loss; })},
                      {"exact_match", make_list([](const EvaluationPoint& point) { return point.total.exact_match; })},
                      {"tasks", std::move(tasks)}};
  append_masks_json(json);
  for (const auto& [task, values] : newest_metrics_) {
    auto& row = json["metrics"].emplace_back(nlohmann::json{{"values", values}});
    if (!task.empty()) row["name"] = task;
  }
  return json;
}

}  // namespace vlmtrain::report
