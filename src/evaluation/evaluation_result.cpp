#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <optional>

#include "evaluation/metrics/boxes.h"
#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::evaluation {

report::EvaluationScore TaskScore::make_evaluation_score() const {
  return {.loss = num_label_tokens > 0 ? loss() : std::numeric_limits<double>::quiet_NaN(),
          .label_tokens = num_label_tokens,
          .samples = num_samples_with_loss,
          .exact_match = num_samples > 0 ? std::optional(exact_match()) : std::nullopt,
          .metrics = get_metric_values(metric_sums)};
}

namespace {

std::optional<report::MaskMetrics> make_mask_metrics(const MaskScoreSums& sums) {
  if (sums.num_masks == 0) return std::nullopt;
  return report::MaskMetrics{.masks = sums.num_masks,
                             .dice = sums.dice(),
                             .iou = sums.iou(),
                             .hausdorff95 = sums.hausdorff95(),
                             .num_empty_truths = sums.num_empty_truths,
                             .num_empty_predictions = sums.num_empty_predictions};
}

/// Returns the JSON object of MaskMetrics, with "by_task" and "by_structure". REQUIRES: at least
/// one mask.
nlohmann::ordered_json make_masks_json(const MaskScores& scores) {
  auto json = make_mask_metrics(scores.total())->to_json();
  json["by_task"] = json["by_structure"] = nlohmann::ordered_json::object();
  for (const auto& [name, sums] : scores.by_task()) json["by_task"][name] = make_mask_metrics(sums)->to_json();
  for (const auto& [name, sums] : scores.by_structure())
    json["by_structure"][name] = make_mask_metrics(sums)->to_json();
  return json;
}

}  // namespace

report::EvaluationMetrics EvaluationResult::make_metrics(bool has_values) const {
  report::EvaluationMetrics metrics{.total = total.make_evaluation_score(),
                                    .tasks = {},
                                    .mask_metrics_by_structure = {},
                                    .seconds = seconds,
                                    .batch_size = batch_size,
                                    .num_oom_splits = num_oom_splits};
  for (const auto& [task, score] : by_task) metrics.tasks[task] = score.make_evaluation_score();
  metrics.total.masks = make_mask_metrics(masks.total());
  for (const auto& [task, sums] : masks.by_task()) metrics.tasks[task].masks = make_mask_metrics(sums);
  for (const auto& [name, sums] : masks.by_structure())
    metrics.mask_metrics_by_structure[name] = *make_mask_metrics(sums);
  if (has_values) return metrics;
  // A virtual GPU computes no values.
  metrics.total.masks.reset();
  metrics.mask_metrics_by_structure.clear();
  metrics.total.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.total.exact_match.reset();
  metrics.total.metrics.clear();
  metrics.tasks.clear();
  return metrics;
}

std::string EvaluationResult::to_json() const {
  nlohmann::ordered_json tasks = nlohmann::ordered_json::object();
  for (const auto& [task, score] : by_task) {
    tasks[task] = {{"samples", score.num_samples},
                   {"exact_match", score.exact_match()},
                   {"loss", score.loss()},
                   {"label_tokens", score.num_label_tokens}};
    if (!score.metric_sums.empty())
      tasks[task]["metrics"] = report::metrics_to_json(get_metric_values(score.metric_sums));
  }
  nlohmann::ordered_json json{
      {"loss", total.loss()},
      {"label_tokens", total.num_label_tokens},
      {"samples", total.num_samples},
      {"exact_match", total.exact_match()},
      {"closed", {{"samples", closed_question_score.num_samples}, {"accuracy", closed_question_score.accuracy()}}},
      {"open",
       {{"samples", open_question_score.num_samples},
        {"exact_match", open_question_score.exact_match()},
        {"recall", open_question_score.recall()},
        {"precision", open_question_score.precision()},
        {"f1", open_question_score.f1()}}},
      {"skipped", num_skipped_samples},
      {"dropped", num_dropped_samples},
      {"batch_size", batch_size},
      {"oom_splits", num_oom_splits},
      {"seconds", seconds},
      {"by_task", tasks},
      {"notices", notices.to_json()}};
  // Older versions named the field left_out.
  io::add_field_aliases(json, {{"dropped", "left_out"}});
  if (!total.metric_sums.empty()) json["metrics"] = report::metrics_to_json(get_metric_values(total.metric_sums));
  if (masks.total().num_masks > 0) json["masks"] = make_masks_json(masks);
  return io::to_json_string(json);
}

namespace {

std::vector<image::Box> locate_boxes(std::string_view answer, const models::CoordinateMap& map) {
  std::vector<image::Box> boxes;
  for (const Box& box : parse_boxes(answer)) boxes.push_back(map.map(box.x1, box.y1, box.x2, box.y2));
  return boxes;
}

}  // namespace

std::optional<BoxComparison> compare_boxes(const io::Record& record, const models::WrittenRecord& written,
                                           std::string_view expected, std::string_view prediction) {
  const auto object = std::ranges::find_if(record.objects, [&](const io::ObjectMark& mark) {
    return !mark.is_name() && mark.turn_index + 1 == record.turns.size();
  });
  if (object == record.objects.end()) return std::nullopt;
  const models::CoordinateMap& map = written.coordinate_maps.at(static_cast<size_t>(object->image_index));
  BoxComparison comparison{.image_index = object->image_index,
                           .predicted_boxes = locate_boxes(prediction, map),
                           .true_boxes = locate_boxes(expected, map)};
  if (comparison.true_boxes.empty()) return std::nullopt;
  comparison.iou = score_box_iou(expected, prediction).value().value_or(0);
  return comparison;
}

}  // namespace vlmtrain::evaluation
