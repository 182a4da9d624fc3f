#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/options.h"
#include "vlmtrain/data/options.h"
#include "vlmtrain/engine/settings/options.h"
#include "vlmtrain/evaluation/metrics.h"
#include "vlmtrain/nn/weights/weight_settings.h"
#include "vlmtrain/planner/options.h"
#include "vlmtrain/report/progress.h"

namespace vlmtrain::train {

/// The metric that selects the best checkpoint: the loss, the share of exact answers, the Dice
/// coefficient of masks, or a metric of answers.
class BestMetric {
 public:
  enum Kind : uint8_t { kLoss, kExactMatch, kDice, kAnswerMetric };

  // Implicit, because each kind and each metric of answers is a metric: NOLINTBEGIN(google-explicit-constructor)
  /// REQUIRES: `kind` is not kAnswerMetric.
  constexpr BestMetric(Kind kind) : kind_(kind) {}
  constexpr BestMetric(evaluation::Metric metric) : kind_(kAnswerMetric), answer_metric_(metric) {}
  // NOLINTEND(google-explicit-constructor)

  constexpr Kind kind() const { return kind_; }
  /// REQUIRES: kind() is kAnswerMetric.
  constexpr evaluation::Metric answer_metric() const { return answer_metric_; }
  /// Returns whether the metric compares generated answers.
  constexpr bool needs_answers() const { return kind_ == kExactMatch || kind_ == kAnswerMetric; }
  constexpr bool operator==(const BestMetric&) const = default;

 private:
  Kind kind_;
  evaluation::Metric answer_metric_{};
};

/// Returns all metrics with their values of training.best_metric, for example "exact_match".
const std::vector<std::pair<std::string, BestMetric>>& get_best_metric_names();

/// Returns the value of training.best_metric. The pointer stays valid.
const char* to_string(BestMetric metric);

/// Returns the metric for reports, with its direction.
report::BestMetric make_report_metric(BestMetric metric);

// The structs below hold the keys of a configuration. docs/reference/config.md, which is generated from
// declare_options(), describes each key and its allowed values. Defaults are the initial values
// here.

/// Section `model`: the checkpoint, its quantization and its frozen parts.
struct ModelOptions {
  std::string path;              ///< folder of a checkpoint in Hugging Face layout, or a reference to one on the Hub
  std::string adapter;           ///< the same of a PEFT adapter to continue; empty: none
  std::string path_in_cache;     ///< folder of `path` in the Hugging Face cache; empty: `path` is a folder
  std::string adapter_in_cache;  ///< the same for `adapter`
  bool freeze_vision_tower = false;
  bool freeze_projector = false;
  bool freeze_language_model = false;
  bool freeze_per_layer_embeddings = false;
  bool freeze_mask_encoder = false;
  std::vector<std::string> allow_missing;     ///< modules or tensors that the checkpoint may lack
  std::vector<std::string> allow_unexpected;  ///< modules or tensors that config.json does not require
  bool resize_embeddings = false;             ///< the checkpoint may have another vocabulary size than config.json
  nn::Quantization quantization = nn::Quantization::kNone;

  /// Returns the folder of the checkpoint.
  const std::string& folder() const { return path_in_cache.empty() ? path : path_in_cache; }
  /// Returns the folder of the adapter; empty: none.
  const std::string& adapter_folder() const { return adapter_in_cache.empty() ? adapter : adapter_in_cache; }
};

/// Section `hub`.
struct HubOptions {
  std::map<std::string, std::string> commits{};  ///< of the references in other keys, as they are written there
};

/// Section `lora`: the fields of nn::LoraSettings; rank 0 means no LoRA.
struct LoraOptions {
  int64_t rank = 0;
  double alpha = 16;                                      ///< an adapter's output is multiplied by alpha / rank
  double dropout = 0;                                     ///< probability of zeroing an input of an adapter
  std::vector<std::string> target_modules{"all-linear"};  ///< Linears with adapters: names or regular expressions
  std::vector<std::string> modules_to_save{};             ///< modules that are trained in full
  bool use_rslora = false;                                ///< multiplies by alpha / √rank instead
  bool use_dora = false;                                  ///< also trains the row norms of adapted weights
  double loraplus_lr_ratio = 1;                           ///< factor of the learning rate of B (LoRA+)

  bool operator==(const LoraOptions&) const = default;
};

/// training.resume: whether a run continues from a checkpoint in output.dir, and with which
/// settings.
enum class ResumePolicy {
  kAuto,     ///< resumes with unchanged settings; starts a run if there is no checkpoint
  kChanged,  ///< resumes with changed settings
  kNever,    ///< is an error if there is a checkpoint
};

/// The step at which the learning rate schedule starts.
enum class ScheduleOrigin {
  kStart,       ///< the first step of the run
  kLastChange,  ///< the last step at which training.resume=changed changed the schedule
};

/// The keys of section `training` for evaluations on data.eval during a run (docs/how-to/evaluate.md).
/// An AutoOr without a value stands for `auto`.
struct EvaluationOptions {
  AutoOr<int64_t> steps = 0;           ///< steps between evaluations; auto: only at the ends of epochs; 0: none
  AutoOr<int64_t> samples;             ///< number of samples; auto: all samples of data.eval
  bool generate_answers = true;        ///< generates answers, too; false: computes only the loss
  int64_t max_new_tokens = 32;         ///< maximum number of tokens per answer
  AutoOr<int64_t> batch_size;          ///< auto: the planner chooses it
  evaluation::MetricSettings metrics;  ///< section `eval`: metrics of the answers
  BestMetric best_metric = BestMetric::kLoss;
  int64_t early_stopping_patience = 0;  ///< consecutive evaluations without improvement that end the run; 0: never

  bool is_enabled() const { return !steps || *steps > 0; }
};

/// The data type of saved weights. kAuto: that of each weight in the checkpoint that training
/// started from.
enum class OutputDtype { kAuto, kFp32, kBf16, kFp16 };

/// Whether training continues while a checkpoint is written. kAuto: if host memory suffices for
/// copies.
enum class AsyncSaveMode { kAuto, kAlways, kNever };

/// Section `distributed`: how the ranks of a run share work and memory.
struct DistributedOptions {
  AutoOr<engine::ShardingStrategy> sharding = engine::ShardingStrategy::kNone;
  int64_t rendezvous_timeout_seconds = 60;  ///< time within which all ranks must connect
};

/// Section `output`: the files that a run writes.
struct OutputOptions {
  std::string dir;  ///< folder of the run
  OutputDtype dtype = OutputDtype::kAuto;
  int64_t save_steps = 500;      ///< steps between checkpoints; 0: only at the end
  int64_t save_total_limit = 2;  ///< maximum number of checkpoints to keep
  bool keep_best = true;         ///< also keeps the checkpoint with the best evaluation
  AsyncSaveMode async_save = AsyncSaveMode::kAuto;
  int64_t num_sample_predictions = 4;      ///< number of samples that the model answers at each checkpoint
  double max_prediction_time_share = 0.1;  ///< maximum share of the run's time for these answers, from 0 to 1
  bool write_report = true;                ///< writes report.html
  bool write_tensorboard = true;           ///< writes event files for TensorBoard
  bool log_samples = false;                ///< writes the ids of each step's samples to samples.jsonl
};

/// A complete configuration.
struct Config {
  ModelOptions model;
  HubOptions hub;
  LoraOptions lora;
  data::DataOptions data;
  engine::TrainingOptions training;
  ResumePolicy resume_policy = ResumePolicy::kAuto;
  ScheduleOrigin schedule_origin = ScheduleOrigin::kStart;
  EvaluationOptions evaluation;
  planner::MemoryOptions memory;
  OutputOptions output;
  DistributedOptions distributed;
};

/// Returns the table of all keys, bound to the fields of `config`, which must outlive the table.
/// Reading a value through the table sets the field.
OptionTable declare_options(Config& config);

/// Returns the number of steps of a run: training.max_steps, or the steps of training.epochs
/// epochs, rounded up. `batch_units_per_epoch`: samples of an epoch or, with packing, packs. Throws
/// UserError (kUsage) for more than engine::kMaxSteps.
int64_t compute_total_steps(const engine::TrainingOptions& training, double batch_units_per_epoch);

/// Returns the total number of steps of a run that continues with changed settings after `steps`
/// completed steps and `epochs` completed epochs. `batch_units_per_epoch`: samples or packs of an
/// epoch.
int64_t compute_total_steps_after_change(int64_t steps, double epochs, const engine::TrainingOptions& training,
                                         double batch_units_per_epoch);

/// Returns the largest micro-batch size on the CPU: training.micro_batch_size or, for `auto`, at
/// most 8 samples. Unless samples are packed, it divides the rank's part of the global batch.
int64_t compute_max_micro_batch_size(const Config& config, int64_t world_size = 1);

/// Throws UserError (kUsage) if training.micro_batch_size does not divide
/// training.global_batch_size. Accepts any size with packing, since packs have no fixed number of
/// samples.
void check_micro_batch_size(const Config& config);

/// Throws UserError (kUsage) if another setting excludes distributed.sharding or weights in host memory:
/// PCGrad or, for these weights, DoRA; and each other. Logs that sharding has no effect if `world_size` is
/// 1.
void check_sharding(const Config& config, int64_t world_size);

/// Throws UserError (kUsage) if training.global_batch_tokens is set and `world_size` is above 1.
void check_global_batch_tokens(const Config& config, int64_t world_size);

/// Throws UserError (kUsage) if `world_size` ranks cannot have equal parts of the global batch, of
/// whole micro-batches. Includes check_sharding() and check_global_batch_tokens().
void check_world_size(const Config& config, int64_t world_size);

}  // namespace vlmtrain::train
