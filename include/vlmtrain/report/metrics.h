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
  double weight = 1;                 ///< weight of its loss in the loss of the step
  std::optional<double> accuracy{};  ///< fraction of its label tokens that are the most likely token
};

/// Mean scores of predicted masks.
struct MaskMetrics {
  int64_t masks = 0;
  double dice = 0;
  double iou = 0;
  std::optional<double> hausdorff95{};  ///< pixels, over masks whose truth and prediction are both not empty
  int64_t empty_truths = 0;             ///< masks whose truth is empty
  int64_t empty_predictions = 0;        ///< masks whose prediction is empty

  /// Returns {"masks", "dice", "iou", "hausdorff95", "empty_truths", "empty_predictions"}.
  nlohmann::ordered_json to_json() const;
};

/// The loss components of a model with masks, unweighted.
struct LossComponents {
  double text = 0;
  double bce = 0;
  double dice = 0;
};

/// The scores of one task, or of all samples, in an evaluation.
struct EvaluationScore {
  double loss = 0;  ///< mean over the label tokens
  int64_t label_tokens = 0;
  int64_t samples = 0;
  std::optional<double>
      exact_match{};  ///< fraction of samples with an exact answer; nullopt if there were none to answer
  std::optional<MaskMetrics> masks{};  ///< nullopt if there were no masks to predict
};

/// The scores of data.eval after a step.
struct EvaluationMetrics {
  EvaluationScore total;
  std::map<std::string, EvaluationScore> tasks{};   ///< by name; empty if samples have no task
  std::map<std::string, MaskMetrics> structures{};  ///< by structure, if the data names them
  double seconds = 0;
  int64_t batch_size = 0;  ///< the largest batch
  int64_t oom_splits = 0;  ///< batches that were repeated in smaller ones
  bool is_best = false;    ///< the best of the run so far, by training.best_metric

  /// Returns the value of "evaluation" in a line of metrics.jsonl.
  std::string to_json() const;
};

/// One optimizer step as a line of metrics.jsonl. Numbers that are not finite are written as null,
/// since JSON has no NaN.
struct StepMetrics {
  int64_t step = 0;                               ///< from 1
  int64_t total_steps = 0;                        ///< of the run; 0: unknown
  double epoch = 0;                               ///< passes over the data set after this step
  double loss = 0;                                ///< mean over the label tokens of the global batch
  double learning_rate = 0;                       ///< of the language model
  std::optional<double> vision_learning_rate;     ///< nullopt if the vision tower is frozen
  std::optional<double> projector_learning_rate;  ///< nullopt if the projector is frozen
  std::optional<double> mask_learning_rate;       ///< nullopt if the model has no masks
  std::optional<LossComponents> loss_components;  ///< nullopt if the model has no masks
  double grad_norm = 0;                           ///< before clipping
  int64_t tokens = 0;
  int64_t label_tokens = 0;
  int64_t num_media = 0;    ///< media of all kinds
  int64_t num_volumes = 0;  ///< volumes among the media
  int64_t samples = 0;
  int64_t micro_batches = 0;
  std::vector<int64_t> micro_batch_sizes;  ///< samples of each micro-batch, in order
  int64_t forecast_splits = 0;             ///< micro-batches that the look-ahead split before they ran
  int64_t oom_splits = 0;                  ///< number of restarts of the step in smaller micro-batches
  bool skipped = false;                    ///< no update was applied, since gradients were not finite
  int64_t skipped_steps = 0;               ///< of the run so far, this step included
  std::optional<double> loss_scale;        ///< nullopt unless training.precision is fp16
  double step_seconds = 0;
  double data_wait_seconds = 0;                           ///< part of step_seconds in which the step waited for samples
  std::optional<int64_t> predicted_allocated_peak_bytes;  ///< nullopt without a plan
  std::optional<int64_t> predicted_peak_bytes;            ///< of reserved bytes; nullopt without a plan
  int64_t allocated_peak_bytes = 0;                       ///< of the device; 0 on the CPU
  int64_t reserved_peak_bytes = 0;
  int64_t allocated_bytes = 0;  ///< at the end of the step
  int64_t reserved_bytes = 0;
  std::optional<int64_t> device_free_bytes;  ///< of the whole GPU; nullopt on the CPU
  int64_t host_bytes = 0;                    ///< resident set of the process
  int64_t host_peak_bytes = 0;
  /// Seconds that each of several ranks has waited for the others since the start of the process,
  /// up to an earlier step.
  std::vector<double> rank_wait_seconds{};
  std::map<std::string, TaskMetrics> tasks;     ///< by name; empty if samples have no task
  std::optional<EvaluationMetrics> evaluation;  ///< after this step, if there was one
  bool is_dry_run = false;                      ///< on a virtual GPU, where loss and grad_norm are NaN without meaning

  /// Returns the reserved bytes without tensors.
  int64_t fragmentation_bytes() const { return reserved_bytes - allocated_bytes; }
  double tokens_per_second() const { return step_seconds > 0 ? static_cast<double>(tokens) / step_seconds : 0; }
  std::string to_json_line() const;
};

/// A writer of JSON lines, each with a `step`, that flushes after each line. A run that resumes at
/// step N first drops the later lines, which the interrupted run wrote after its last checkpoint.
class StepLog {
 public:
  /// Keeps the lines of `path` whose `step` is at most `resumed_step`. Throws UserError (kFailed)
  /// if the file cannot be written.
  StepLog(std::filesystem::path path, int64_t resumed_step);
  void append(const std::string& json_line);
  /// Adds a key to the line of `step`, if it exists. `json` is the value as JSON.
  void amend(int64_t step, const std::string& key, const std::string& json);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

/// The kinds of events in events.jsonl.
enum class EventKind : uint8_t {
  kOomSplit,          ///< out of memory: the step was repeated in smaller micro-batches
  kForecastSplit,     ///< the look-ahead predicted that memory would not suffice
  kAnomaly,           ///< a loss or gradient norm that is not finite or an outlier
  kSkippedStep,       ///< no update was applied
  kMemoryGrowth,      ///< memory grows from step to step
  kMemoryFull,        ///< hardly any memory is free
  kCacheEmptied,      ///< the allocator released unused memory
  kLookAhead,         ///< the look-ahead started, ended, or was far from the measured memory
  kResumed,           ///< the run continues after `step`
  kChanged,           ///< the following steps use other settings, which the message names
  kFewerPredictions,  ///< samples are answered less often than set, since answers took long
  kCheckpoint,        ///< a checkpoint was written
  kStopped,           ///< by request
  kFailed,            ///< by the error in the message
};

/// Returns the name in events.jsonl: "oom_split".
const char* to_string(EventKind kind);

/// Returns Unix time in seconds.
double unix_seconds();

/// An event of a run, a line of events.jsonl.
struct Event {
  int64_t step = 0;  ///< the step in which it happened; 0: before the first
  EventKind kind = EventKind::kAnomaly;
  std::string message{};           ///< human-readable
  std::vector<std::string> ids{};  ///< ids of the affected samples
  double time = unix_seconds();

  /// Returns {"step", "time", "kind", "message", "ids"}.
  std::string to_json_line() const;
};

}  // namespace vlmtrain::report
