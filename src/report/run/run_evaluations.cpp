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
/// Tasks or structures with curves, as many as tasks with training curves (kMaxTaskCurves). The
/// others have table rows only.
constexpr size_t kMaxEvaluationCurves = 12;

/// Returns the value with five significant digits, which keeps pages with thousands of points
/// small; null if it is not finite.
nlohmann::json round_value(double value) {
  if (!std::isfinite(value) || value == 0) return std::isfinite(value) ? nlohmann::json(0) : nlohmann::json();
  const double unit = std::pow(10.0, 4 - std::floor(std::log10(std::abs(value))));
  return std::isfinite(unit) && unit > 0 ? std::round(value * unit) / unit : value;
}

}  // namespace

RunEvaluations::Score RunEvaluations::parse_score(const nlohmann::json& values) {
  return {get_number(values, "loss"), get_number(values, "exact_match"), parse_masks(values).dice};
}

RunEvaluations::MaskSummary RunEvaluations::parse_masks(const nlohmann::json& values) {
  const auto entry = values.find("masks");
  if (entry == values.end() || !entry->is_object()) return {};
  return {get_integer(*entry, "masks"),
          get_number(*entry, "dice"),
          get_number(*entry, "iou"),
          get_number(*entry, "hausdorff95"),
          get_integer(*entry, "empty_truths"),
          get_integer(*entry, io::find_field_name(*entry, {"empty_predictions", "empty_drawn"}))};
}

nlohmann::json RunEvaluations::masks_to_json(const MaskSummary& masks) {
  return {{"masks", masks.masks},
          {"dice", masks.dice},
          {"iou", masks.iou},
          {"hausdorff95", masks.hausdorff95},
          {"empty_truths", masks.empty_truths},
          {"empty_predictions", masks.empty_predictions}};
}

void RunEvaluations::add_structures(const nlohmann::json& evaluation, EvaluationPoint& point) {
  for (auto& structure : structures_) structure.newest = {};
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
    structure->newest = parse_masks(nlohmann::json{{"masks", values}});
    const auto index = static_cast<size_t>(structure - structures_.begin());
    point.structures_dice.resize(std::max(point.structures_dice.size(), index + 1),
                                 std::numeric_limits<double>::quiet_NaN());
    point.structures_dice[index] = structure->newest.dice;
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
  EvaluationPoint point{.step = step, .number = num_evaluations_++, .total = parse_score(evaluation)};
  if (const auto tasks = evaluation.find("tasks"); tasks != evaluation.end() && tasks->is_object()) {
    for (const auto& [name, values] : tasks->items()) {
      if (!values.is_object()) continue;
      const size_t index = find_or_add_task(name);
      if (index == tasks_.size()) continue;
      point.tasks.resize(std::max(point.tasks.size(), index + 1));
      point.tasks[index] = parse_score(values);
      tasks_[index].label_tokens = get_integer(values, "label_tokens");
    }
  }
  newest_masks_ = parse_masks(evaluation);
  add_structures(evaluation, point);
  const double seconds = get_number(evaluation, "seconds");
  if (std::isfinite(seconds)) seconds_ += seconds;
  oom_splits_ += get_integer(evaluation, "oom_splits");
  newest_seconds_ = seconds;
  newest_batch_size_ = get_integer(evaluation, "batch_size");
  newest_samples_ = get_integer(evaluation, "samples");
  const auto is_best = evaluation.find("is_best");
  if (is_best != evaluation.end() && is_best->is_boolean() && is_best->get<bool>()) best_point_ = point;
  newest_point_ = point;
  if (point.number % stride_ != 0) return;
  points_.push_back(std::move(point));
  if (points_.size() <= kMaxEvaluationPoints) return;
  stride_ *= 2;
  std::erase_if(points_, [this](const EvaluationPoint& other) { return other.number % stride_ != 0; });
}

/// Returns the kept points, the best and the newest in ascending order of their steps.
std::vector<const RunEvaluations::EvaluationPoint*> RunEvaluations::list_points() const {
  std::vector<const EvaluationPoint*> points;
  for (const auto& point : points_) points.push_back(&point);
  for (const auto* extra_point : {&best_point_, &newest_point_}) {
    if (!*extra_point) continue;
    const auto index = std::ranges::lower_bound(points, (*extra_point)->step, {}, &EvaluationPoint::step);
    if (index == points.end() || (*index)->step != (*extra_point)->step) points.insert(index, &**extra_point);
  }
  return points;
}

/// Adds the values of masks to the result of to_json(). Does nothing without masks.
void RunEvaluations::append_masks(nlohmann::json& json) const {
  const auto points = list_points();
  const auto make_list = [&](const auto& get_value) {
    auto values = nlohmann::json::array();
    for (const auto* point : points) values.push_back(round_value(get_value(*point)));
    return values;
  };
  if (std::ranges::none_of(points, [](const EvaluationPoint* point) { return std::isfinite(point->total.dice); }))
    return;
  json["dice"] = make_list([](const EvaluationPoint& point) { return point.total.dice; });
  json["masks"] = masks_to_json(newest_masks_);
  json["newest"]["dice"] = newest_point_->total.dice;
  if (best_point_) json["best"]["dice"] = best_point_->total.dice;

  std::vector<size_t> order(structures_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, std::greater<>(), [this](size_t index) { return structures_[index].newest.masks; });
  auto& structures = json["structures"] = nlohmann::json::array();
  for (const size_t index : order) {
    auto structure = masks_to_json(structures_[index].newest);
    structure["name"] = structures_[index].name;
    if (structures.size() < kMaxEvaluationCurves) {
      structure["dice_curve"] = make_list([index](const EvaluationPoint& point) {
        return index < point.structures_dice.size() ? point.structures_dice[index]
                                                    : std::numeric_limits<double>::quiet_NaN();
      });
    }
    structures.push_back(std::move(structure));
  }
}

nlohmann::json RunEvaluations::to_json() const {
  if (!newest_point_) return {};
  const auto points = list_points();
  const auto make_list = [&](const auto& get_value) {
    auto values = nlohmann::json::array();
    for (const auto* point : points) values.push_back(round_value(get_value(*point)));
    return values;
  };
  const auto make_headline = [](const EvaluationPoint& point) {
    return nlohmann::json{{"step", point.step}, {"loss", point.total.loss}, {"exact_match", point.total.exact_match}};
  };
  auto newest = make_headline(*newest_point_);
  newest["seconds"] = newest_seconds_;
  newest["batch_size"] = newest_batch_size_;
  newest["samples"] = newest_samples_;
  auto steps = nlohmann::json::array();
  for (const auto* point : points) steps.push_back(point->step);

  std::vector<size_t> order(tasks_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, std::greater<>(), [this](size_t index) { return tasks_[index].label_tokens; });
  auto tasks = nlohmann::json::array();
  for (const size_t index : order) {
    const auto get_task_score = [index](const EvaluationPoint& point) {
      return index < point.tasks.size() ? point.tasks[index] : Score();
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
                      {"seconds", seconds_},
                      {"oom_splits", oom_splits_},
                      {"best", best_point_ ? make_headline(*best_point_) : nlohmann::json()},
                      {"newest", std::move(newest)},
                      {"steps", std::move(steps)},
                      {"loss", make_list([](const EvaluationPoint& point) { return point.total.loss; })},
                      {"exact_match", make_list([](const EvaluationPoint& point) { return point.total.exact_match; })},
                      {"tasks", std::move(tasks)}};
  append_masks(json);
  return json;
}

}  // namespace vlmtrain::report
