#include "report/run_evaluations.h"

#include <algorithm>
#include <cmath>

#include "report/json_value.h"

namespace vlmtrain::report {

namespace {

constexpr size_t kMostPoints = 1024;
constexpr size_t kMostEvaluatedTasks = 200;
constexpr size_t kMostStructures = 200;
constexpr size_t kLongestName = 200;
/// As many as there are curves of training by task; the others have their numbers.
constexpr size_t kMostEvaluationCurves = 12;

/// Five digits: thousands of points are drawn of them.
nlohmann::json short_number(double value) {
  if (!std::isfinite(value) || value == 0) return std::isfinite(value) ? nlohmann::json(0) : nlohmann::json();
  const double unit = std::pow(10.0, 4 - std::floor(std::log10(std::abs(value))));
  return std::isfinite(unit) && unit > 0 ? std::round(value * unit) / unit : value;
}

}  // namespace

RunEvaluations::Score RunEvaluations::score_of(const nlohmann::json& values) {
  return {number_in(values, "loss"), number_in(values, "exact_match"), masks_of(values).dice};
}

RunEvaluations::Masks RunEvaluations::masks_of(const nlohmann::json& values) {
  const auto found = values.find("masks");
  if (found == values.end() || !found->is_object()) return {};
  return {count_in(*found, "masks"),        number_in(*found, "dice"),        number_in(*found, "iou"),
          number_in(*found, "hausdorff95"), count_in(*found, "empty_truths"), count_in(*found, "empty_drawn")};
}

nlohmann::json RunEvaluations::json_of(const Masks& masks) {
  return {{"masks", masks.masks},
          {"dice", masks.dice},
          {"iou", masks.iou},
          {"hausdorff95", masks.hausdorff95},
          {"empty_truths", masks.empty_truths},
          {"empty_drawn", masks.empty_drawn}};
}

void RunEvaluations::add_structures(const nlohmann::json& evaluation, Point& point) {
  for (auto& structure : structures_) structure.newest = {};
  const auto found = evaluation.find("structures");
  if (found == evaluation.end() || !found->is_object()) return;
  for (const auto& [full_name, values] : found->items()) {
    if (!values.is_object()) continue;
    const std::string name = shortened(full_name, kLongestName);
    auto structure = std::ranges::find(structures_, name, &Structure::name);
    if (structure == structures_.end()) {
      if (structures_.size() == kMostStructures) continue;
      structure = structures_.insert(structure, Structure{.name = name});
    }
    structure->newest = masks_of(nlohmann::json{{"masks", values}});
    const auto place = static_cast<size_t>(structure - structures_.begin());
    point.structures_dice.resize(std::max(point.structures_dice.size(), place + 1),
                                 std::numeric_limits<double>::quiet_NaN());
    point.structures_dice[place] = structure->newest.dice;
  }
}

/// Of a task that is not kept: the number of those that are.
size_t RunEvaluations::place_of(const std::string& name) {
  const auto found = std::ranges::find(tasks_, name, &Task::name);
  if (found == tasks_.end() && tasks_.size() < kMostEvaluatedTasks) {
    tasks_.push_back({.name = name});
    return tasks_.size() - 1;
  }
  return static_cast<size_t>(found - tasks_.begin());
}

void RunEvaluations::add(int64_t step, const nlohmann::json& line) {
  const auto found = line.find("evaluation");
  if (found == line.end() || !found->is_object()) return;
  const auto& evaluation = *found;
  Point point{.step = step, .number = count_++, .total = score_of(evaluation)};
  if (const auto tasks = evaluation.find("tasks"); tasks != evaluation.end() && tasks->is_object()) {
    for (const auto& [name, values] : tasks->items()) {
      if (!values.is_object()) continue;
      const size_t place = place_of(name);
      if (place == tasks_.size()) continue;
      point.tasks.resize(std::max(point.tasks.size(), place + 1));
      point.tasks[place] = score_of(values);
      tasks_[place].label_tokens = count_in(values, "label_tokens");
    }
  }
  newest_masks_ = masks_of(evaluation);
  add_structures(evaluation, point);
  const double seconds = number_in(evaluation, "seconds");
  if (std::isfinite(seconds)) seconds_ += seconds;
  oom_splits_ += count_in(evaluation, "oom_splits");
  newest_seconds_ = seconds;
  newest_batch_size_ = count_in(evaluation, "batch_size");
  newest_samples_ = count_in(evaluation, "samples");
  const auto is_best = evaluation.find("is_best");
  if (is_best != evaluation.end() && is_best->is_boolean() && is_best->get<bool>()) best_ = point;
  newest_ = point;
  if (point.number % stride_ != 0) return;
  kept_.push_back(std::move(point));
  if (kept_.size() <= kMostPoints) return;
  stride_ *= 2;
  std::erase_if(kept_, [this](const Point& one) { return one.number % stride_ != 0; });
}

std::vector<const RunEvaluations::Point*> RunEvaluations::points() const {
  std::vector<const Point*> points;
  for (const auto& point : kept_) points.push_back(&point);
  for (const auto* extra : {&best_, &newest_}) {
    if (!*extra) continue;
    const auto place = std::ranges::lower_bound(points, (*extra)->step, {}, &Point::step);
    if (place == points.end() || (*place)->step != (*extra)->step) points.insert(place, &**extra);
  }
  return points;
}

void RunEvaluations::add_masks_to(nlohmann::json& json) const {
  const auto shown = points();
  const auto list = [&](const auto& value_of) {
    auto values = nlohmann::json::array();
    for (const auto* point : shown) values.push_back(short_number(value_of(*point)));
    return values;
  };
  if (std::ranges::none_of(shown, [](const Point* point) { return std::isfinite(point->total.dice); })) return;
  json["dice"] = list([](const Point& point) { return point.total.dice; });
  json["masks"] = json_of(newest_masks_);
  json["newest"]["dice"] = newest_->total.dice;
  if (best_) json["best"]["dice"] = best_->total.dice;

  std::vector<size_t> order(structures_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, std::greater<>(), [this](size_t place) { return structures_[place].newest.masks; });
  auto& structures = json["structures"] = nlohmann::json::array();
  for (const size_t place : order) {
    auto structure = json_of(structures_[place].newest);
    structure["name"] = structures_[place].name;
    if (structures.size() < kMostEvaluationCurves) {
      structure["dice_curve"] = list([place](const Point& point) {
        return place < point.structures_dice.size() ? point.structures_dice[place]
                                                    : std::numeric_limits<double>::quiet_NaN();
      });
    }
    structures.push_back(std::move(structure));
  }
}

nlohmann::json RunEvaluations::to_json() const {
  if (!newest_) return {};
  const auto shown = points();
  const auto list = [&](const auto& value_of) {
    auto values = nlohmann::json::array();
    for (const auto* point : shown) values.push_back(short_number(value_of(*point)));
    return values;
  };
  const auto headline = [](const Point& point) {
    return nlohmann::json{{"step", point.step}, {"loss", point.total.loss}, {"exact_match", point.total.exact_match}};
  };
  auto newest = headline(*newest_);
  newest["seconds"] = newest_seconds_;
  newest["batch_size"] = newest_batch_size_;
  newest["samples"] = newest_samples_;
  auto steps = nlohmann::json::array();
  for (const auto* point : shown) steps.push_back(point->step);

  std::vector<size_t> order(tasks_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, std::greater<>(), [this](size_t place) { return tasks_[place].label_tokens; });
  auto tasks = nlohmann::json::array();
  for (const size_t place : order) {
    const auto of_task = [place](const Point& point) {
      return place < point.tasks.size() ? point.tasks[place] : Score();
    };
    nlohmann::json task{{"name", tasks_[place].name},
                        {"newest_loss", of_task(*newest_).loss},
                        {"newest_exact_match", of_task(*newest_).exact_match}};
    if (tasks.size() < kMostEvaluationCurves) {
      task["loss"] = list([&](const Point& point) { return of_task(point).loss; });
      task["exact_match"] = list([&](const Point& point) { return of_task(point).exact_match; });
    }
    tasks.push_back(std::move(task));
  }
  nlohmann::json json{{"count", count_},
                      {"seconds", seconds_},
                      {"oom_splits", oom_splits_},
                      {"best", best_ ? headline(*best_) : nlohmann::json()},
                      {"newest", std::move(newest)},
                      {"steps", std::move(steps)},
                      {"loss", list([](const Point& point) { return point.total.loss; })},
                      {"exact_match", list([](const Point& point) { return point.total.exact_match; })},
                      {"tasks", std::move(tasks)}};
  add_masks_to(json);
  return json;
}

}  // namespace vlmtrain::report
