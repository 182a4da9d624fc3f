#include "vlmtrain/engine/settings/options.h"

#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

namespace {

const std::vector<std::pair<std::string, Precision>> kPrecisionNames{
    {"bf16", Precision::kBf16}, {"fp16", Precision::kFp16}, {"fp32", Precision::kFp32}};

const std::vector<std::pair<std::string, kernels::KernelBackend>> kKernelBackendNames{
    {"own", kernels::KernelBackend::kCustom}, {"aten", kernels::KernelBackend::kAten}};
const std::vector<std::pair<std::string, OptimizerStateDtype>> kOptimizerStateDtypeNames{
    {"fp32", OptimizerStateDtype::kFp32}, {"bf16", OptimizerStateDtype::kBf16}, {"8bit", OptimizerStateDtype::k8Bit}};

const std::vector<std::pair<std::string, ScheduleShape>> kScheduleShapeNames{
    {"cosine", ScheduleShape::kCosine}, {"linear", ScheduleShape::kLinear}, {"constant", ScheduleShape::kConstant}};

// Far above any batch size. Limits the memory of a step's list of samples.
constexpr int64_t kMaxSamplesPerStep = 1'000'000;
/// A small fraction of an epoch, but far above the rounding error of the epoch count.
constexpr double kMinEpochs = 1e-6;
constexpr double kMaxEpochs = 1e6;
/// Far above any useful weight. Rejects typos.
constexpr double kMaxLossWeight = 1e6;

template <class T>
std::string find_enum_name(const std::vector<std::pair<std::string, T>>& names, T value) {
  for (const auto& [name, named_value] : names) {
    if (named_value == value) return name;
  }
  throw InternalError("the value has no name");
}

}  // namespace

std::string to_string(Precision precision) {
  return find_enum_name(kPrecisionNames, precision);
}

std::optional<Precision> parse_precision(std::string_view name) {
  for (const auto& [precision_name, precision] : kPrecisionNames) {
    if (precision_name == name) return precision;
  }
  return std::nullopt;
}

std::string to_string(OptimizerStateDtype state_dtype) {
  return find_enum_name(kOptimizerStateDtypeNames, state_dtype);
}

at::ScalarType to_dtype(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return at::kFloat;
    case Precision::kBf16:
      return at::kBFloat16;
    case Precision::kFp16:
      return at::kHalf;
  }
  throw InternalError("unknown precision");
}

void declare_options(OptionTable& table, TrainingOptions& options) {
  table.set_section_description("training", "Batch size, length of the run, optimizer and learning rate.");
  table.add("training.global_batch_size", options.global_batch_size,
            "Number of samples per optimizer step. It is exact unless `training.global_batch_tokens` is set: neither "
            "memory nor the micro-batch size changes it.",
            std::optional{between<int64_t>(1, kMaxSamplesPerStep)});
  table.add("training.micro_batch_size", options.micro_batch_size,
            "Number of samples per forward and backward pass; must divide a global batch of samples. `auto`: each step "
            "is split according to its own samples into as few micro-batches as memory allows; on the CPU with at most "
            "8 samples each.",
            std::optional{allow_auto(between<int64_t>(1, kMaxSamplesPerStep))});
  table.add("training.max_steps", options.max_steps,
            "Number of optimizer steps. `auto`: as many as `training.epochs` requires.",
            std::optional{allow_auto(between<int64_t>(1, kMaxSteps))});
  table.add("training.epochs", options.epochs,
            "Number of passes over the data set if max_steps is `auto`; rounded up to whole steps.",
            std::optional{between(kMinEpochs, kMaxEpochs)});
  table.add("training.learning_rate", options.learning_rate, "Peak learning rate.", std::optional{at_least(0.0)});
  table.add("training.vision_learning_rate", options.vision_learning_rate,
            "Peak learning rate of the vision tower. `auto`: `training.learning_rate`.",
            std::optional{allow_auto(at_least(0.0))});
  table.add("training.projector_learning_rate", options.projector_learning_rate,
            "Peak learning rate of the projector. `auto`: `training.learning_rate`.",
            std::optional{allow_auto(at_least(0.0))});
  table.add("training.mask_learning_rate", options.mask_learning_rate,
            "For models that predict masks: peak learning rate of the mask encoder and decoder. `auto`: "
            "`training.learning_rate`.",
            std::optional{allow_auto(at_least(0.0))});
  table.add("training.text_loss_weight", options.mask_loss_weights.text,
            "For models that predict masks: weight of the text's cross-entropy in the loss.",
            std::optional{between(0.0, kMaxLossWeight)});
  table.add("training.mask_bce_weight", options.mask_loss_weights.bce,
            "For models that predict masks: weight of the binary cross-entropy of the mask pixels, averaged over the "
            "pixels of the global batch.",
            std::optional{between(0.0, kMaxLossWeight)});
  table.add("training.mask_dice_weight", options.mask_loss_weights.dice,
            "For models that predict masks: weight of the Dice loss, averaged over the masks of the global batch.",
            std::optional{between(0.0, kMaxLossWeight)});
  table.add("training.adam_beta1", options.adam_beta1, "AdamW's decay of the first moment.",
            std::optional{in_half_open_range(0.0, 1.0)});
  table.add("training.adam_beta2", options.adam_beta2, "AdamW's decay of the second moment.",
            std::optional{in_half_open_range(0.0, 1.0)});
  table.add("training.adam_epsilon", options.adam_epsilon, "AdamW's epsilon.", std::optional{exceeds(0.0)});
  table.add("training.weight_decay", options.weight_decay,
            "AdamW's decoupled weight decay. Applies only to tensors with two or more dimensions.",
            std::optional{at_least(0.0)});
  table.add("training.warmup_ratio", options.warmup_ratio,
            "Fraction of the steps in which the learning rate rises to its peak.", std::optional{between(0.0, 1.0)});
  table.add_enum("training.lr_scheduler", options.lr_scheduler, kScheduleShapeNames,
                 "Learning rate schedule after the warm-up: decay to zero, or constant.");
  table.add("training.max_grad_norm", options.max_grad_norm,
            "Maximum global norm of the gradient; larger gradients are scaled down to it. 0: no clipping.",
            std::optional{at_least(0.0)});
  table.add_enum("training.precision", options.precision, kPrecisionNames,
                 "Data type of the model's computation. With bf16 and fp16 the optimizer keeps fp32 master weights, "
                 "and gradients are accumulated in fp32 over the micro-batches. fp16 uses a loss scale.");
  table.add("training.loss_scale", options.loss_scale,
            "With fp16: factor on the loss before the backward pass. `auto`: 65536 at first, halved after a step whose "
            "gradients overflow, which is skipped, and doubled after `training.loss_scale_growth_steps` steps without "
            "overflow.",
            std::optional{allow_auto(exceeds(0.0))});
  table.add("training.loss_scale_growth_steps", options.loss_scale_growth_steps,
            "With fp16 and `training.loss_scale: auto`: number of steps without an overflow after which the loss scale "
            "doubles.",
            std::optional{at_least<int64_t>(1)});
  table.add_enum("training.optimizer_states", options.optimizer_states, kOptimizerStateDtypeNames,
                 "Data type of AdamW's moments. bf16: rounded stochastically. 8bit: block-wise and dynamic, as in "
                 "bitsandbytes; embeddings in fp32. Tensors with fewer than 4096 elements are always in fp32.");
  table.add_enum("training.kernels", options.kernels, kKernelBackendNames,
                 "On CUDA: vlmtrain's custom kernels, each of which fuses several of ATen's, or only ATen's kernels. A "
                 "custom kernel whose results on a GPU differ from ATen's is disabled when the run starts.");
  table.add("training.seed", options.seed, "Seed of the order of the samples and of all other randomness.",
            std::optional{at_least<int64_t>(0)});
  declare_options(table, options.batch_and_tasks);
}

}  // namespace vlmtrain::engine
