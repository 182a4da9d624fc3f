#pragma once

#include <nlohmann/json.hpp>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::report {

/// Returns the sum of the label tokens' weights as metrics have it: nullopt if all are 1.
inline std::optional<double> make_label_weight(int64_t label_tokens, double weight_sum) {
  return weight_sum == static_cast<double>(label_tokens) ? std::nullopt : std::optional(weight_sum);
}

/// The samples of one task in a step.
struct TaskMetrics {
  double loss = 0;  ///< weighted mean over its label tokens
  int64_t label_tokens = 0;
  std::optional<double> label_weight{};  ///< sum of the weights of the label tokens; nullopt if all are 1
  int64_t samples = 0;
  double weight = 1;                 ///< weight of its loss in the loss of the step
  std::optional<double> accuracy{};  ///< fraction of its label tokens to which the model gives the highest probability
};

/// Mean scores of predicted segmentation masks.
struct MaskMetrics {
  int64_t masks = 0;
  double dice = 0;  ///< Dice coefficient, 0 to 1
  double iou = 0;   ///< intersection over union, 0 to 1
  /// Mean of the 95th percentile of the Hausdorff distance in pixels, over the masks with a
  /// non-empty truth and a non-empty prediction; nullopt if there are none.
  std::optional<double> hausdorff95{};
  int64_t num_empty_truths = 0;       ///< masks whose truth is empty
  int64_t num_empty_predictions = 0;  ///< masks whose prediction is empty

  /// Returns {"masks", "dice", "iou", "hausdorff95", "empty_truths", "empty_predictions"}.
  nlohmann::ordered_json to_json() const;
};

/// The unweighted components of the loss of a model that predicts masks.
struct LossComponents {
  double text = 0;  ///< cross-entropy of the label tokens
  double bce = 0;   ///< binary cross-entropy of the masks
  double dice = 0;  ///< Dice loss of the masks
};

/// Metrics of generated answers by name, such as "anls"; nullopt if a metric does not apply to any
/// of the answers.
using AnswerMetrics = std::map<std::string, std::optional<double>>;

/// Returns the object with the values of the metrics; null for those that do not apply.
nlohmann::ordered_json metrics_to_json(const AnswerMetrics& metrics);

/// The scores of one task, or of all samples, in an evaluation.
struct EvaluationScore {
  double loss = 0;  ///< weighted mean over the label tokens
  int64_t label_tokens = 0;
  int64_t samples = 0;
  /// Fraction of the generated answers that equal the expected ones; nullopt without answers.
  std::optional<double> exact_match{};
  std::optional<MaskMetrics> masks{};  ///< nullopt if no sample has a mask
  AnswerMetrics metrics{};             ///< those of eval.metrics; empty without answers
};

/// The scores of data.eval after a step.
struct EvaluationMetrics {
  EvaluationScore total;
  std::map<std::string, EvaluationScore> tasks{};                  ///< by name; empty if samples have no task
  std::map<std::string, MaskMetrics> mask_metrics_by_structure{};  ///< by name; empty if the data names none
  double seconds = 0;
  int64_t batch_size = 0;      ///< samples of the largest batch
  int64_t num_oom_splits = 0;  ///< batches that ran out of memory and were repeated as smaller ones
  bool is_best = false;        ///< whether it is the best of the run so far by training.best_metric

  /// Returns the value of "evaluation" in a line of metrics.jsonl.
  std::string to_json() const;
};

/// One optimizer step as a line of metrics.jsonl. Numbers that are not finite are written as null,
/// since JSON has no NaN.
struct StepMetrics {
  int64_t step = 0;                               ///< from 1
  int64_t total_steps = 0;                        ///< of the run; 0 if unknown
  double epoch = 0;                               ///< passes over the data set after this step
  double loss = 0;                                ///< weighted mean over the label tokens of the global batch
  double learning_rate = 0;                       ///< of the language model
  std::optional<double> vision_learning_rate;     ///< nullopt if the vision tower is frozen
  std::optional<double> projector_learning_rate;  ///< nullopt if the projector is frozen
  std::optional<double> mask_learning_rate;       ///< nullopt if the model has no masks
  std::optional<LossComponents> loss_components;  ///< nullopt if the model has no masks
  double grad_norm = 0;                           ///< before clipping
  int64_t tokens = 0;
  int64_t label_tokens = 0;
  std::optional<double> label_weight;  ///< sum of the weights of the label tokens; nullopt if all are 1
  int64_t num_media = 0;               ///< images, videos and volumes
  int64_t num_volumes = 0;             ///< volumes among the media
  int64_t samples = 0;
  int64_t num_micro_batches = 0;
  std::vector<int64_t> micro_batch_sizes;  ///< samples of each micro-batch, in order
  int64_t num_look_ahead_splits = 0;       ///< micro-batches that the look-ahead split before they ran
  int64_t num_oom_splits = 0;              ///< restarts of the step with smaller micro-batches after out of memory
  bool skipped = false;                    ///< whether the update was skipped because gradients were not finite
  int64_t num_skipped_steps = 0;           ///< in the run so far, this step included
  std::optional<double> loss_scale;        ///< nullopt unless training.precision is fp16
  double step_seconds = 0;
  double data_wait_seconds = 0;                           ///< part of step_seconds spent waiting for samples
  std::optional<int64_t> predicted_allocated_peak_bytes;  ///< nullopt without a plan
  std::optional<int64_t> predicted_reserved_peak_bytes;   ///< of reserved bytes; nullopt without a plan
  int64_t allocated_peak_bytes = 0;                       ///< of the device; 0 on the CPU
  int64_t reserved_peak_bytes = 0;
  int64_t allocated_bytes = 0;  ///< at the end of the step
  int64_t reserved_bytes = 0;
  std::optional<int64_t> device_free_bytes;  ///< free memory of the GPU; nullopt on the CPU
  int64_t host_bytes = 0;                    ///< resident set size of the process
  int64_t host_peak_bytes = 0;               ///< peak of the resident set size
  /// By rank, the seconds that it has waited for the others between the start of the process and an
  /// earlier step. Empty for a single rank.
  std::vector<double> rank_wait_seconds{};
  std::map<std::string, TaskMetrics> tasks;     ///< by name; empty if samples have no task
  std::optional<EvaluationMetrics> evaluation;  ///< set if data.eval was evaluated after this step
  bool is_dry_run = false;                      ///< a virtual GPU computed no values: loss and grad_norm are NaN

  /// Returns the reserved bytes that no tensor uses at the end of the step.
  int64_t fragmentation_bytes() const { return reserved_bytes - allocated_bytes; }
  double tokens_per_second() const { return step_seconds > 0 ? static_cast<double>(tokens) / step_seconds : 0; }
  std::string to_json_line() const;
};

/// Appends `data` to the file at `path` and flushes it. Throws UserError (kFailed) if that fails.
void append_to_log_file(std::ofstream& file, std::string_view data, const std::filesystem::path& path);

/// A writer of a file of JSON lines with a key "step" each. Flushes after each line. A run that
/// resumes at step N first drops the later lines, which the interrupted run wrote after its last
/// checkpoint. Not thread-safe.
class StepLog {
 public:
  /// Keeps the lines of `path` whose `step` is at most `resumed_step`. Throws UserError (kFailed)
  /// if the file cannot be written.
  StepLog(std::filesystem::path path, int64_t resumed_step);
  /// Appends a line. Throws UserError (kFailed) if the file cannot be written.
  void append(const std::string& json_line);
  /// Sets `key` to `json`, a JSON value, in the line of `step` and rewrites the file. Does nothing
  /// if no line has this step.
  void set_line_field(int64_t step, const std::string& key, const std::string& json);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

/// The kinds of events in events.jsonl.
enum class EventKind : uint8_t {
  kOomSplit,          ///< out of memory: the step was repeated in smaller micro-batches
  kLookAheadSplit,    ///< the look-ahead predicted out of memory: micro-batches were split before they ran
  kAnomaly,           ///< a loss or gradient norm that is not finite or an outlier
  kSkippedStep,       ///< no update was applied
  kMemoryGrowth,      ///< memory grows from step to step
  kMemoryFull,        ///< hardly any memory is free
  kCacheEmptied,      ///< the allocator released unused memory
  kLookAhead,         ///< the look-ahead started, ended, or differed much from the measured memory
  kResumed,           ///< the run continues after `step`
  kSettingsChanged,   ///< settings changed for the following steps; the message names them
  kFewerPredictions,  ///< predictions are made less often than configured because they take long
  kCheckpoint,        ///< a checkpoint was written
  kStopped,           ///< the run was stopped on request
  kFailed,            ///< the run ended with the error in the message
};

/// Returns the name of the kind in events.jsonl: "oom_split".
const char* to_string(EventKind kind);

/// Returns the current Unix time in seconds.
double get_unix_seconds();

/// An event of a run, a line of events.jsonl.
struct RunEvent {
  int64_t step = 0;  ///< the step in which it happened; 0: before the first
  EventKind kind = EventKind::kAnomaly;
  std::string message{};             ///< human-readable
  std::vector<std::string> ids{};    ///< ids of the affected samples
  double time = get_unix_seconds();  ///< Unix time in seconds

  /// Returns {"step", "time", "kind", "message", "ids"}.
  std::string to_json_line() const;
};

/// Sums of a run's steps by epoch, from the lines of metrics.jsonl in order. A step belongs to the
/// epoch in which it ends; a step that ends several epochs belongs to the last one. After a change
/// of the data set, epochs count from 1 again, and the unfinished epoch gets its own row.
///
/// A row of epochs.jsonl: {"step": its last step, "epoch": from 1, "complete", "first_step",
/// "last_step", "loss": mean over the label tokens, "tasks": {name: {"loss", "samples",
/// "label_tokens"}}, "samples", "tokens", "label_tokens", "seconds": sum of the steps,
/// "samples_per_second", "tokens_per_second", "oom_splits", "forecast_splits", "skipped_steps",
/// "allocated_peak_bytes", "allocated_mean_bytes": mean of the steps' peaks, "reserved_peak_bytes",
/// "reserved_mean_bytes", "host_peak_bytes", "host_mean_bytes": mean of the resident bytes after
/// each step, "evaluation": after the last step, or null}.
class EpochSummaries {
 public:
  /// Adds a line. Returns the rows of the epochs that end with it or, if the data set changed,
  /// before it. Ignores damaged lines, and steps that are not after the last one.
  std::vector<nlohmann::ordered_json> add(const nlohmann::json& line);
  /// Returns the row of the steps since the last complete epoch; nullopt without such steps.
  std::optional<nlohmann::ordered_json> make_current_epoch_row() const;

 private:
  /// The sums over the label tokens of a task or of all samples.
  struct LossSums {
    double loss = 0;                // sum of mean loss · weight of the label tokens
    double finite_loss_weight = 0;  // weight of the label tokens of the steps with a finite loss
    int64_t label_tokens = 0;
    int64_t samples = 0;

    /// Adds the values of a step: {"loss", "label_tokens", "label_weight", "samples"}.
    void add(const nlohmann::json& values);
    /// Returns the mean loss; null without finite losses.
    nlohmann::ordered_json mean_loss_to_json() const;
  };
  /// Peak and mean of a kind of memory over the steps of an epoch.
  struct EpochMemoryStats {
    int64_t peak = 0;  // bytes
    double sum = 0;    // of one number of bytes per step, for the mean
  };
  /// The sums of an epoch.
  struct EpochSums {
    int64_t first_step = 0;
    int64_t last_step = 0;
    int64_t steps = 0;
    LossSums total{};
    std::map<std::string, LossSums> tasks{};
    int64_t tokens = 0;
    int64_t num_oom_splits = 0;
    int64_t num_look_ahead_splits = 0;
    int64_t num_skipped_steps = 0;
    double seconds = 0;
    EpochMemoryStats allocated{}, reserved{}, host{};
    nlohmann::json evaluation{};
  };

  /// Adds a line to epoch_sums_.
  void accumulate(const nlohmann::json& line);
  /// Returns the row of epoch_sums_.
  nlohmann::ordered_json make_epoch_row(int64_t epoch, bool is_complete) const;

  EpochSums epoch_sums_;
  double num_completed_epochs_ = 0;  // passes over the data set after the last step
  int64_t last_step_ = 0;
};

}  // namespace vlmtrain::report
