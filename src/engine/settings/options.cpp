#include "vlmtrain/engine/settings/options.h"

#include <cmath>

#include "engine/settings/enum_names.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/tensor_fwd.h"

namespace vlmtrain::engine {

namespace {

const std::vector<std::pair<std::string, BatchScaling>> kBatchScalingNames{
    {"none", BatchScaling::kNone}, {"sqrt", BatchScaling::kSqrt}, {"linear", BatchScaling::kLinear}};
const std::vector<std::pair<std::string, Precision>> kPrecisionNames{
    {"bf16", Precision::kBf16}, {"fp16", Precision::kFp16}, {"fp32", Precision::kFp32}};

const std::vector<std::pair<std::string, kernels::KernelBackend>> kKernelBackendNames{
    {"custom", kernels::KernelBackend::kCustom}, {"aten", kernels::KernelBackend::kAten}};
const std::vector<std::pair<std::string, ScheduleShape>> kScheduleShapeNames{
    {"cosine", ScheduleShape::kCosine}, {"linear", ScheduleShape::kLinear}, {"constant", ScheduleShape::kConstant}};

// Far above any batch size. Limits the memory of a step's list of samples.
constexpr int64_t kMaxSamplesPerStep = 1'000'000;
/// A small fraction of an epoch, but far above the rounding error of the epoch count.
constexpr double kMinEpochs = 1e-6;
constexpr double kMaxEpochs = 1e6;
/// Far above any useful weight. Rejects typos.
constexpr double kMaxLossWeight = 1e6;

}  // namespace

double compute_learning_rate_factor(BatchScaling scaling, double batch_ratio) {
  switch (scaling) {
    case BatchScaling::kNone:
      return 1.0;
    case BatchScaling::kSqrt:
      return std::sqrt(batch_ratio);
    case BatchScaling::kLinear:
      return batch_ratio;
  }
  throw InternalError("unknown batch scaling");
}

std::string to_string(BatchScaling scaling) {
  return find_enum_name(kBatchScalingNames, scaling);
}

void declare_options(OptionTable& table, BatchAndTaskOptions& options) {
  table.add(
      keys::training::kGlobalBatchTokens, options.global_batch_tokens,
      {.doc = "Approximate number of tokens per step, image tokens included, with at most `training.global_batch_size` "
              "samples (docs/how-to/several-tasks.md). Requires `training.max_steps`. auto: off, a step takes exactly "
              "`training.global_batch_size` samples.",
       .resume = ResumeRule::kIfRequested,
       .unit = "tokens"},
      allow_auto(at_least<int64_t>(1)));
  table.add_enum(
      keys::training::kBatchScaling, options.batch_scaling, kBatchScalingNames,
      {.doc = "Scaling of the learning rates with the batch size. With f = tokens of the step / "
              "`training.global_batch_tokens`, or `training.global_batch_size` / `training.reference_batch_size`, "
              "they are multiplied by 1, √f or f.",
       .resume = ResumeRule::kIfRequested});
  table.add(keys::training::kReferenceBatchSize, options.reference_batch_size,
            {.doc = "Global batch size for which the learning rates were tuned. auto: the batch size of the run.",
             .resume = ResumeRule::kIfRequested,
             .unit = "samples"},
            allow_auto(at_least<int64_t>(1)));
  table.add_enum(keys::training::kTaskWeighting, options.task_weighting,
                 {{"none", TaskWeighting::kNone},
                  {"fixed", TaskWeighting::kFixed},
                  {"inverse_size", TaskWeighting::kInverseSize},
                  {"gradnorm", TaskWeighting::kGradNorm}},
                 {.doc = "Weights of the tasks in the loss (docs/how-to/several-tasks.md). fixed: "
                         "`training.task_weights`. inverse_size: 1 / number of samples of the task in `data.train`. "
                         "gradnorm: GradNorm adapts them during training.",
                  .resume = ResumeRule::kIfRequested});
  table.add(
      keys::training::kTaskWeights, options.task_weights,
      {.doc = "With fixed weights: one entry per task, `[caption=0.5, question=2]`. Only their ratios count: they are "
              "scaled to a mean of 1 over the samples of `data.train`.",
       .resume = ResumeRule::kIfRequested});
  table.add(keys::training::kGradnormAlpha, options.gradnorm_alpha,
            {.doc = "GradNorm's alpha: how strongly tasks that learn slowly are favored.",
             .resume = ResumeRule::kIfRequested},
            at_least(0.0));
  table.add(keys::training::kGradnormLearningRate, options.gradnorm_learning_rate,
            {.doc = "Learning rate of GradNorm's weights.", .resume = ResumeRule::kIfRequested}, exceeds(0.0));
  table.add_enum(
      keys::training::kGradientConflicts, options.gradient_conflicts,
      {{"none", GradientConflictMethod::kNone}, {"pcgrad", GradientConflictMethod::kPcGrad}},
      {.doc = "Handling of conflicting gradients. pcgrad: if the gradients of two tasks point against each other, "
              "each loses its component along the other. This takes 4 more bytes per trained weight and task beyond "
              "the first, and each micro-batch then has samples of one task only.",
       .resume = ResumeRule::kIfRequested});
}

std::string to_string(Precision precision) {
  return find_enum_name(kPrecisionNames, precision);
}

std::optional<Precision> parse_precision(std::string_view name) {
  return find_enum_value(kPrecisionNames, name);
}

at::ScalarType to_dtype(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return kFloatType;
    case Precision::kBf16:
      return kBFloat16Type;
    case Precision::kFp16:
      return kHalfType;
  }
  throw InternalError("unknown precision");
}

void declare_options(OptionTable& table, TrainingOptions& options) {
  table.set_section_description("training", "Batch size, length of the run, optimizer and learning rate.");
  table.add(
      keys::training::kGlobalBatchSize, options.global_batch_size,
      {.doc = "Number of samples per optimizer step. It is exact unless `training.global_batch_tokens` is set: neither "
              "memory nor the micro-batch size changes it.",
       .resume = ResumeRule::kIfRequested,
       .unit = "samples",
       .hints = {{.names = {"per_device_train_batch_size", "per_gpu_train_batch_size", "train_micro_batch_size_per_gpu",
                            "device_batch_size", "batch_size", "train_batch_size", "per_device_batch_size"},
                  .text = "training.global_batch_size is the exact number of samples per step; the planner chooses "
                          "training.micro_batch_size (auto)"}}},
      between<int64_t>(1, kMaxSamplesPerStep));
  table.add(
      keys::training::kMicroBatchSize, options.micro_batch_size,
      {.doc =
           "Number of samples per forward and backward pass; must divide a global batch of samples. `auto`: each step "
           "is split according to its own samples into as few micro-batches as memory allows; on the CPU with at most "
           "8 samples each.",
       .resume = ResumeRule::kFree,
       .unit = "samples",
       .hints = {{.names = {"local_batch_size", "micro_train_batch_size"},
                  .text = "training.micro_batch_size: auto chooses the most samples that fit"},
                 {.names = {"gradient_accumulation_steps", "accumulate_grad_batches", "gradient_accumulation",
                            "grad_accum_steps"},
                  .text = "training.global_batch_size / training.micro_batch_size; set the global batch size, the "
                          "planner chooses the micro-batch size"}}},
      allow_auto(between<int64_t>(1, kMaxSamplesPerStep)));
  table.add(
      keys::training::kMaxSteps, options.max_steps,
      {.doc = "Number of optimizer steps. `auto`: as many as `training.epochs` requires.",
       .resume = ResumeRule::kIfRequested,
       .unit = "steps",
       .hints = {{.names = {"max_samples"},
                  .text = "training.max_steps ends a run earlier; no key limits the records of a data set"},
                 {.names = {"num_steps", "total_steps", "max_train_steps", "num_training_steps", "train_steps"}}}},
      allow_auto(between<int64_t>(1, kMaxSteps)));
  table.add(keys::training::kEpochs, options.epochs,
            {.doc = "Number of passes over the data set if max_steps is `auto`; rounded up to whole steps.",
             .resume = ResumeRule::kIfRequested,
             .unit = "epochs",
             .hints = {{.names = {"num_train_epochs", "num_epochs", "n_epochs", "max_epochs"}}}},
            between(kMinEpochs, kMaxEpochs));
  table.add(keys::training::kLearningRate, options.learning_rate,
            {.doc = "Peak learning rate.", .resume = ResumeRule::kIfRequested, .hints = {{.names = {"lr", "base_lr"}}}},
            at_least(0.0));
  table.add(
      keys::training::kVisionLearningRate, options.vision_learning_rate,
      {.doc = "Peak learning rate of the vision tower. `auto`: `training.learning_rate`.",
       .resume = ResumeRule::kIfRequested,
       .hints = {{.names = {"vit_lr", "vision_lr", "vision_tower_lr", "mm_vision_tower_lr", "vision_encoder_lr"}}}},
      allow_auto(at_least(0.0)));
  table.add(keys::training::kProjectorLearningRate, options.projector_learning_rate,
            {.doc = "Peak learning rate of the projector. `auto`: `training.learning_rate`.",
             .resume = ResumeRule::kIfRequested,
             .hints = {{.names = {"aligner_lr", "merger_lr", "projector_lr", "mm_projector_lr", "connector_lr"}}}},
            allow_auto(at_least(0.0)));
  table.add(keys::training::kMaskLearningRate, options.mask_learning_rate,
            {.doc = "For models that predict masks: peak learning rate of the mask encoder and decoder. `auto`: "
                    "`training.learning_rate`.",
             .resume = ResumeRule::kIfRequested},
            allow_auto(at_least(0.0)));
  table.add(keys::training::kTextLossWeight, options.mask_loss_weights.text,
            {.doc = "For models that predict masks: weight of the text's cross-entropy in the loss.",
             .resume = ResumeRule::kIfRequested},
            between(0.0, kMaxLossWeight));
  table.add(
      keys::training::kMaskBceWeight, options.mask_loss_weights.bce,
      {.doc = "For models that predict masks: weight of the binary cross-entropy of the mask pixels, averaged over the "
              "pixels of the global batch.",
       .resume = ResumeRule::kIfRequested},
      between(0.0, kMaxLossWeight));
  table.add(
      keys::training::kMaskDiceWeight, options.mask_loss_weights.dice,
      {.doc = "For models that predict masks: weight of the Dice loss, averaged over the masks of the global batch.",
       .resume = ResumeRule::kIfRequested},
      between(0.0, kMaxLossWeight));
  declare_options(table, options.optimizer);
  table.add(keys::training::kWarmupRatio, options.warmup_ratio,
            {.doc = "Fraction of the steps in which the learning rate rises to its peak.",
             .resume = ResumeRule::kIfRequested,
             .hints = {{.names = {"warmup_steps", "num_warmup_steps"},
                        .text = "training.warmup_ratio: warm-up steps / total steps"}}},
            between(0.0, 1.0));
  table.add_enum(keys::training::kLrScheduler, options.lr_scheduler, kScheduleShapeNames,
                 {.doc = "Learning rate schedule after the warm-up: decay to zero, or constant.",
                  .resume = ResumeRule::kIfRequested,
                  .hints = {{.names = {"lr_scheduler_type", "scheduler", "lr_schedule"}}}});
  table.add(
      keys::training::kMaxGradNorm, options.optimizer.max_grad_norm,
      {.doc = "Maximum global norm of the gradient; larger gradients are scaled down to it. 0: no clipping.",
       .resume = ResumeRule::kIfRequested,
       .hints = {{.names = {"gradient_clipping", "clip_grad", "clip_grad_norm", "max_norm", "gradient_clip_val"}}}},
      at_least(0.0));
  table.add_enum(
      keys::training::kPrecision, options.precision, kPrecisionNames,
      {.doc = "Data type of the model's computation. Gradients are accumulated in fp32 over the micro-batches. fp16 "
              "uses a loss scale.",
       .resume = ResumeRule::kIfRequested,
       .hints = {
           {.names = {"fp16"}, .text = "training.precision: fp16"},
           {.names = {"bf16"}, .text = "training.precision: bf16"},
           {.names = {"tf32"}, .text = "training.precision: bf16, fp16 or fp32"},
           {.names = {"dtype"},
            .text = "training.precision; of checkpoints output.dtype, of volumes data.volume.dtype"},
           {.names = {"torch_dtype", "compute_dtype", "mixed_precision", "bnb_4bit_compute_dtype", "model_dtype"}}}});
  table.add(
      keys::training::kLossScale, options.loss_scale,
      {.doc =
           "With fp16: factor on the loss before the backward pass. `auto`: 65536 at first, halved after a step whose "
           "gradients overflow, which is skipped, and doubled after `training.loss_scale_growth_steps` steps without "
           "overflow.",
       .resume = ResumeRule::kIfRequested},
      allow_auto(exceeds(0.0)));
  table.add(
      keys::training::kLossScaleGrowthSteps, options.loss_scale_growth_steps,
      {.doc =
           "With fp16 and `training.loss_scale: auto`: number of steps without an overflow after which the loss scale "
           "doubles.",
       .resume = ResumeRule::kIfRequested,
       .unit = "steps"},
      at_least<int64_t>(1));
  table.add_enum(
      keys::training::kKernels, options.kernels, kKernelBackendNames,
      {.doc = "On CUDA: vlmtrain's custom kernels, each of which fuses several of ATen's, or only ATen's kernels. A "
              "custom kernel whose results on a GPU differ from ATen's is disabled when the run starts.",
       .resume = ResumeRule::kFree,
       .value_aliases = {{"own", "custom"}}});
  table.add(keys::training::kSeed, options.seed,
            {.doc = "Seed of the order of the samples and of all other randomness.",
             .resume = ResumeRule::kNever,
             .hints = {{.names = {"random_seed", "data_seed", "manual_seed", "random_state"}}}},
            at_least<int64_t>(0));
  declare_options(table, options.batch_and_tasks);
}

}  // namespace vlmtrain::engine
