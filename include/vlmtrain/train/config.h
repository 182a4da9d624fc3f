#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/base/options.h"
#include "vlmtrain/data/options.h"
#include "vlmtrain/engine/gradients/consensus.h"
#include "vlmtrain/engine/settings/options.h"
#include "vlmtrain/nn/weights/quantization.h"
#include "vlmtrain/planner/options.h"

namespace vlmtrain::train {

/// Section `model`: the checkpoint, its quantization and its frozen parts.
struct ModelOptions {
  std::string path;
  std::string adapter;
  bool freeze_vision_tower = false;
  bool freeze_projector = false;
  bool freeze_language_model = false;
  bool freeze_mask_encoder = false;
  std::vector<std::string> allow_missing;
  std::vector<std::string> allow_unexpected;
  bool resize_embeddings = false;
  nn::Quantization quantization = nn::Quantization::kNone;
};

/// Section `lora`: the fields of nn::LoraSettings; rank 0 means no LoRA.
struct LoraOptions {
  int64_t rank = 0;
  double alpha = 16;
  double dropout = 0;
  std::vector<std::string> target_modules{"all-linear"};
  std::vector<std::string> modules_to_save{};
  bool use_rslora = false;
  bool use_dora = false;

  bool operator==(const LoraOptions&) const = default;
};

/// training.resume: whether a run continues from a checkpoint in output.dir, and with which settings.
enum class ResumePolicy { kAuto, kChanged, kNever };

/// The step at which the learning rate schedule starts: that of the run, or of its last change of
/// settings.
enum class ScheduleOrigin { kStart, kChange };

/// The metric that selects the best checkpoint.
enum class BestMetric { kLoss, kExactMatch, kDice };

/// Returns the name that the configuration uses.
const char* to_string(BestMetric metric);

/// The keys of section `training` for evaluations on data.eval during a run (docs/evaluation.md).
struct EvaluationOptions {
  Auto<int64_t> steps = 0;  ///< auto: at the ends of epochs and of the run only; 0: no evaluations
  Auto<int64_t> samples;    ///< auto: all samples of data.eval
  bool answers = true;
  int64_t max_new_tokens = 32;
  Auto<int64_t> batch_size;
  BestMetric best_metric = BestMetric::kLoss;
  int64_t patience = 0;  ///< evaluations without a better one that end the run; 0: it never ends early

  bool is_enabled() const { return !steps || *steps > 0; }
};

/// The data type of saved weights.
enum class OutputDtype { kAuto, kFp32, kBf16, kFp16 };

/// Whether training continues while a checkpoint is written.
enum class AsyncSave { kAuto, kTrue, kFalse };

/// Section `distributed`: how the ranks of a run share work and memory.
struct DistributedOptions {
  Auto<engine::Sharding> sharding = engine::Sharding::kNone;
  int64_t rendezvous_seconds = 60;
};

/// Section `output`: what a run writes, and when.
struct OutputOptions {
  std::string dir;
  OutputDtype dtype = OutputDtype::kAuto;
  int64_t save_steps = 500;
  int64_t save_total_limit = 2;
  bool keep_best = true;
  AsyncSave async_save = AsyncSave::kAuto;
  int64_t sample_predictions = 4;
  double sample_predictions_share = 0.1;
  bool report = true;
  bool tensorboard = true;
  bool log_samples = false;
};

/// A whole configuration.
struct Config {
  ModelOptions model;
  LoraOptions lora;
  data::DataOptions data;
  engine::TrainingOptions training;
  ResumePolicy resume = ResumePolicy::kAuto;
  ScheduleOrigin schedule_origin = ScheduleOrigin::kStart;
  EvaluationOptions evaluation;
  planner::MemoryOptions memory;
  OutputOptions output;
  DistributedOptions distributed;
};

/// Returns the options of all sections, bound to `config`, which must outlive the table.
OptionTable declare(Config& config);

/// Returns the steps of a run: training.max_steps, or what training.epochs of `samples` take,
/// rounded up.
int64_t compute_total_steps(const engine::TrainingOptions& training, double units);

/// Returns the steps of a run that continues with other settings after `steps`, at which `epochs`
/// passes over `samples` were done.
int64_t compute_total_steps_after_change(int64_t steps, double epochs, const engine::TrainingOptions& training,
                                         double units);

/// Returns the largest micro-batch on the CPU: training.micro_batch_size, or for `auto` at most 8
/// samples, a divisor of the rank's share of the global batch unless samples are packed.
int64_t compute_max_micro_batch_size(const Config& config, int64_t world_size = 1);

/// Throws UserError (kUsage) where training.micro_batch_size does not divide the global batch, or
/// where it is set for packs, which have no fixed number of samples.
void check_micro_batch(const Config& config);

/// Throws UserError (kUsage) where `world_size` ranks cannot use distributed.sharding. Logs that a
/// single rank has nothing to share.
void check_sharding(const Config& config, int64_t world_size);

/// Throws UserError (kUsage) where several ranks would have steps of an unknown number of samples.
void check_global_batch_tokens(const Config& config, int64_t world_size);

/// Throws UserError (kUsage) where `world_size` ranks cannot have equal parts of the global batch.
void check_world_size(const Config& config, int64_t world_size);

}  // namespace vlmtrain::train
