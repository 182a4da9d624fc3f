#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace vlmtrain::report {

/// The samples of one task in a step.
struct TaskMetrics {
  double loss = 0;  ///< mean over its label tokens
  int64_t label_tokens = 0;
  int64_t samples = 0;
  double weight = 1;                 ///< of its loss in the step's
  std::optional<double> accuracy{};  ///< share of its label tokens whose most likely token is the right one
};

/// How well masks were drawn: means over them.
struct MaskMetrics {
  int64_t masks = 0;
  double dice = 0;
  double iou = 0;
  std::optional<double> hausdorff95{};  ///< pixels, over the masks of which neither side is empty
  int64_t empty_truths = 0;             ///< masks with nothing to draw
  int64_t empty_predictions = 0;        ///< masks of which nothing was drawn

  /// {"masks", "dice", "iou", "hausdorff95", "empty_truths", "empty_predictions"}
  nlohmann::ordered_json to_json() const;
};

/// The parts of the loss of a model that draws masks, before their weights.
struct LossComponents {
  double text = 0;
  double bce = 0;
  double dice = 0;
};

/// Of one task, or of all samples, in an evaluation.
struct EvaluationScore {
  double loss = 0;  ///< mean over the label tokens
  int64_t label_tokens = 0;
  int64_t samples = 0;
  std::optional<double> exact_match{};  ///< share of samples answered exactly; nothing where none was to be answered
  std::optional<MaskMetrics> masks{};   ///< nothing where none was to be drawn
};

/// What the model was worth on data.eval after a step.
struct EvaluationMetrics {
  EvaluationScore total;
  std::map<std::string, EvaluationScore> tasks{};   ///< by name; empty where samples have no task
  std::map<std::string, MaskMetrics> structures{};  ///< what masks show, where the data says so
  double seconds = 0;
  int64_t batch_size = 0;  ///< most samples that were computed at once
  int64_t oom_splits = 0;  ///< batches that were done again in smaller ones
  bool is_best = false;    ///< of the run so far, by training.best_metric

  /// As in a step's line.
  std::string to_json() const;
};

/// One optimizer step as metrics.jsonl has it. A number that is not finite stands there as null, for JSON has no NaN.
struct StepMetrics {
  int64_t step = 0;                               ///< from 1
  int64_t total_steps = 0;                        ///< of the run; 0: unknown
  double epoch = 0;                               ///< passes over the data set after this step
  double loss = 0;                                ///< mean over the label tokens of the global batch
  double learning_rate = 0;                       ///< of the language model
  std::optional<double> vision_learning_rate;     ///< nothing where the vision tower stays as it is
  std::optional<double> projector_learning_rate;  ///< the same of the projector
  std::optional<double> mask_learning_rate;       ///< nothing unless the model draws masks
  std::optional<LossComponents> loss_components;  ///< the same
  double grad_norm = 0;                           ///< before clipping
  int64_t tokens = 0;
  int64_t label_tokens = 0;
  int64_t num_media = 0;    ///< media of all kinds
  int64_t num_volumes = 0;  ///< of the images
  int64_t samples = 0;
  int64_t micro_batches = 0;
  std::vector<int64_t> micro_batch_sizes;  ///< samples in each micro-batch, in their order
  int64_t forecast_splits = 0;             ///< micro-batches that the twin had split before they ran
  int64_t oom_splits = 0;                  ///< how often the step was begun anew in smaller micro-batches
  bool skipped = false;                    ///< nothing was applied: gradients that were not finite
  int64_t skipped_steps = 0;               ///< of the run so far, with this one
  std::optional<double> loss_scale;        ///< nothing unless training.precision is fp16
  double step_seconds = 0;
  double data_wait_seconds = 0;  ///< share of step_seconds in which the step waited for samples
  std::optional<int64_t> predicted_allocated_peak_bytes;  ///< nothing without a plan
  std::optional<int64_t> predicted_peak_bytes;            ///< of what is reserved; nothing without a plan
  int64_t allocated_peak_bytes = 0;                       ///< of the device; 0 on the CPU
  int64_t reserved_peak_bytes = 0;
  int64_t allocated_bytes = 0;  ///< at the end of the step
  int64_t reserved_bytes = 0;
  std::optional<int64_t> device_free_bytes;  ///< of the whole card; nothing on the CPU
  int64_t host_bytes = 0;                    ///< resident set of the process
  int64_t host_peak_bytes = 0;
  /// Of several ranks: that each has waited for the others since the run was last started, up to some step before.
  std::vector<double> rank_wait_seconds{};
  std::map<std::string, TaskMetrics> tasks;     ///< by name; empty where samples have no task
  std::optional<EvaluationMetrics> evaluation;  ///< after this step, where there was one
  bool is_dry_run = false;  ///< on a virtual card: there are no values, so loss and grad_norm are NaN and mean nothing

  /// What the allocator holds beside the tensors.
  int64_t fragmentation_bytes() const { return reserved_bytes - allocated_bytes; }
  double tokens_per_second() const { return step_seconds > 0 ? static_cast<double>(tokens) / step_seconds : 0; }
  std::string to_json_line() const;
};

/// A file of JSON lines, each with a `step`, flushed after each. A run that goes on at step N first drops the lines
/// behind it, which the interrupted run wrote after its last checkpoint.
class StepLog {
 public:
  /// Keeps the lines of `path` whose `step` is at most `resumed_step`. Throws UserError (kFailed) if it cannot be
  /// written.
  StepLog(std::filesystem::path path, int64_t resumed_step);
  void append(const std::string& json_line);
  /// Adds a key to the line of `step`, if there is one; `json` is its value.
  void amend(int64_t step, const std::string& key, const std::string& json);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace vlmtrain::report
