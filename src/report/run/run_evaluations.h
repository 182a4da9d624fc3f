#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace vlmtrain::report {

/// The evaluations in metrics.jsonl, one point for each. Beyond 1,024 points, only every second,
/// fourth, … evaluation is kept, besides the best and the newest one.
class RunEvaluations {
 public:
  /// Adds a step's line. Lines without an evaluation are ignored.
  void add(int64_t step, const nlohmann::json& line);

  /// Returns {"count", "seconds": sum of all, "oom_splits", "best": {"step", "loss", "exact_match"}
  /// or null, "newest": the same with "seconds", "batch_size" and "samples", "steps": [of the
  /// points, ascending], "loss": […], "exact_match": […], "tasks": [{"name", "newest_loss",
  /// "newest_exact_match", and for those with the most label tokens "loss": […], "exact_match":
  /// […]}, by decreasing label tokens]}; null without evaluations.
  ///
  /// With masks: "dice" in "best" and "newest", "dice": […], "masks": {"masks", "dice", "iou",
  /// "hausdorff95", "empty_truths", "empty_predictions"} of the newest evaluation, and
  /// "structures": [the same with "name", and for the first of them "dice_curve": […], by
  /// decreasing number of masks].
  ///
  /// With metrics of answers: "metrics": [{"name": of the task, "values": {name: number}}, …, {"values":
  /// of all samples}] of the newest evaluation.
  nlohmann::json to_json() const;

 private:
  /// The scores of a task or of all samples; NaN if unknown.
  struct Scores {
    double loss = std::numeric_limits<double>::quiet_NaN();
    double exact_match = std::numeric_limits<double>::quiet_NaN();
    double dice = std::numeric_limits<double>::quiet_NaN();
  };
  /// The scores of masks; NaN if unknown.
  struct MaskSummary {
    int64_t num_masks = 0;  // 0 without masks
    double dice = std::numeric_limits<double>::quiet_NaN();
    double iou = std::numeric_limits<double>::quiet_NaN();
    double hausdorff95 = std::numeric_limits<double>::quiet_NaN();
    int64_t num_empty_truths = 0;
    int64_t num_empty_predictions = 0;
  };
  /// The scores of one evaluation.
  struct EvaluationPoint {
    int64_t step = 0;
    int64_t number = 0;  // from 0, over all evaluations
    Scores total{};
    std::vector<Scores> tasks{};              // in the order of tasks_; later tasks are missing
    std::vector<double> dice_by_structure{};  // in the order of structures_; later structures are missing
  };
  struct Task {
    std::string name;
    int64_t label_tokens = 0;  // of the newest evaluation with the task
  };

  struct Structure {
    std::string name;
    MaskSummary newest_summary{};  // without masks if the newest evaluation lacks the structure
  };

  /// The metrics of a task's answers in the newest evaluation.
  struct TaskMetricValues {
    std::string task;  // empty for all samples
    std::map<std::string, double> values;
  };

  void add_metrics(const nlohmann::json& evaluation);
  static Scores parse_scores(const nlohmann::json& values);
  static MaskSummary parse_mask_summary(const nlohmann::json& values);
  static nlohmann::json mask_summary_to_json(const MaskSummary& masks);
  void add_structure_scores(const nlohmann::json& evaluation, EvaluationPoint& point);
  void append_masks_json(nlohmann::json& json) const;
  size_t find_or_add_task(const std::string& task);
  std::vector<const EvaluationPoint*> list_evaluation_points() const;

  std::vector<Task> tasks_;
  std::vector<Structure> structures_;
  MaskSummary newest_mask_summary_;
  std::vector<TaskMetricValues> newest_metrics_;  // all samples last; empty without metrics
  std::vector<EvaluationPoint> evaluation_points_;
  int64_t evaluation_stride_ = 1;  // evaluation_points_ has the evaluations whose number is a multiple of it
  std::optional<EvaluationPoint> best_point_;
  std::optional<EvaluationPoint> newest_point_;
  // Of all evaluations.
  int64_t num_evaluations_ = 0;
  double total_evaluation_seconds_ = 0;
  int64_t num_oom_splits_ = 0;
  double newest_evaluation_seconds_ = 0;
  int64_t newest_batch_size_ = 0;
  int64_t newest_num_samples_ = 0;
};

}  // namespace vlmtrain::report
