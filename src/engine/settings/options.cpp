#include "vlmtrain/engine/settings/options.h"

#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

namespace {

const std::vector<std::pair<std::string, Precision>> kPrecisions{
    {"bf16", Precision::kBf16}, {"fp16", Precision::kFp16}, {"fp32", Precision::kFp32}};

const std::vector<std::pair<std::string, kernels::KernelBackend>> kKernels{{"own", kernels::KernelBackend::kCustom},
                                                                           {"aten", kernels::KernelBackend::kAten}};
const std::vector<std::pair<std::string, OptimizerStates>> kStates{
    {"fp32", OptimizerStates::kFp32}, {"bf16", OptimizerStates::kBf16}, {"8bit", OptimizerStates::k8Bit}};

const std::vector<std::pair<std::string, ScheduleShape>> kShapes{
    {"cosine", ScheduleShape::kCosine}, {"linear", ScheduleShape::kLinear}, {"constant", ScheduleShape::kConstant}};

// Far above any batch size. Limits the memory of a step's list of samples.
constexpr int64_t kMaxStepSamples = 1'000'000;
/// A small fraction of an epoch, but far above the rounding error of the epoch count.
constexpr double kMinEpochs = 1e-6;
constexpr double kMaxEpochs = 1e6;
/// Far above any useful weight. Rejects typos.
constexpr double kMaxLossWeight = 1e6;

template <class T>
std::string find_name(const std::vector<std::pair<std::string, T>>& names, T value) {
  for (const auto& [name, named_value] : names) {
    if (named_value == value) return name;
  }
  throw InternalError("the value has no name");
}

}  // namespace

std::string to_string(Precision precision) {
  return find_name(kPrecisions, precision);
}

std::optional<Precision> parse_precision(std::string_view name) {
  for (const auto& [precision_name, precision] : kPrecisions) {
    if (precision_name == name) return precision;
  }
  return std::nullopt;
}

std::string to_string(OptimizerStates states) {
  return find_name(kStates, states);
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

void declare(OptionTable& table, TrainingOptions& options) {
  table.describe_section("training", "How many samples a step takes, how long, and how the weights are moved.");
  table.add(
      "training.global_batch_size", options.global_batch_size,
      "Samples of one optimizer step. Exactly this many, unless `training.global_batch_tokens` is set: neither memory "
      "nor the micro-batch changes it.",
      std::optional{between<int64_t>(1, kMaxStepSamples)});
  table.add(
      "training.micro_batch_size", options.micro_batch_size,
      "Samples of one forward and backward pass; must divide a global batch of samples. `auto`: each step is cut for "
      "its own samples, into as few passes as memory allows; on the CPU of at most 8 samples.",
      std::optional{allow_auto(between<int64_t>(1, kMaxStepSamples))});
  table.add("training.max_steps", options.max_steps, "Optimizer steps. `auto`: as many as `training.epochs` takes.",
            std::optional{allow_auto(between<int64_t>(1, kMaxSteps))});
  table.add("training.epochs", options.epochs,
            "Passes over the data set, where max_steps is `auto`; rounded up to whole steps.",
            std::optional{between(kMinEpochs, kMaxEpochs)});
  table.add("training.learning_rate", options.learning_rate, "Peak learning rate.", std::optional{at_least(0.0)});
  table.add("training.vision_learning_rate", options.vision_learning_rate,
            "Peak learning rate of the vision tower. `auto`: `training.learning_rate`.",
            std::optional{allow_auto(at_least(0.0))});
  table.add("training.projector_learning_rate", options.projector_learning_rate,
            "Peak learning rate of the projector. `auto`: `training.learning_rate`.",
            std::optional{allow_auto(at_least(0.0))});
  table.add("training.mask_learning_rate", options.mask_learning_rate,
            "Of a model that draws masks: peak learning rate of what encodes their pictures and decodes them. `auto`: "
            "`training.learning_rate`.",
            std::optional{allow_auto(at_least(0.0))});
  table.add("training.text_loss_weight", options.mask_losses.text,
            "Of a model that draws masks: weight of the words' cross-entropy in the loss.",
            std::optional{between(0.0, kMaxLossWeight)});
  table.add("training.mask_bce_weight", options.mask_losses.bce,
            "The same of the binary cross-entropy of the masks' pixels, a mean over those of the global batch.",
            std::optional{between(0.0, kMaxLossWeight)});
  table.add("training.mask_dice_weight", options.mask_losses.dice,
            "The same of the Dice loss, a mean over the masks of the global batch.",
            std::optional{between(0.0, kMaxLossWeight)});
  table.add("training.adam_beta1", options.adam_beta1, "AdamW's decay of the first moment.",
            std::optional{between_half_open(0.0, 1.0)});
  table.add("training.adam_beta2", options.adam_beta2, "AdamW's decay of the second moment.",
            std::optional{between_half_open(0.0, 1.0)});
  table.add("training.adam_epsilon", options.adam_epsilon, "AdamW's epsilon.", std::optional{exceeds(0.0)});
  table.add("training.weight_decay", options.weight_decay,
            "AdamW's decoupled weight decay, on tensors of two or more dimensions only.", std::optional{at_least(0.0)});
  table.add("training.warmup_ratio", options.warmup_ratio,
            "Share of the steps in which the learning rate rises to its peak.", std::optional{between(0.0, 1.0)});
  table.add_enum("training.lr_scheduler", options.lr_scheduler, kShapes,
                 "Course of the learning rate after the warm-up: to zero, or constant.");
  table.add("training.max_grad_norm", options.max_grad_norm,
            "The gradient is scaled down to this global norm. 0: never.", std::optional{at_least(0.0)});
  table.add_enum(
      "training.precision", options.precision, kPrecisions,
      "What the model computes in. With bf16 and fp16 the optimizer keeps fp32 master weights, and gradients add up "
      "in fp32 over the micro-batches; fp16 has a loss scale.");
  table.add("training.loss_scale", options.loss_scale,
            "With fp16: what the loss is multiplied by before the backward pass. `auto`: 65536 at first; half of it "
            "after a step whose gradients overflow, which is skipped; twice after `training.loss_scale_growth_steps` "
            "others.",
            std::optional{allow_auto(exceeds(0.0))});
  table.add("training.loss_scale_growth_steps", options.loss_scale_growth_steps,
            "With fp16 and `training.loss_scale: auto`: steps without an overflow after which the loss scale doubles.",
            std::optional{at_least<int64_t>(1)});
  table.add_enum("training.optimizer_states", options.optimizer_states, kStates,
                 "What AdamW's moments are held in. bf16: rounded stochastically. 8bit: block-wise and dynamic, as "
                 "bitsandbytes; embeddings in fp32. Tensors with fewer than 4096 elements are in fp32 always.");
  table.add_enum("training.kernels", options.kernels, kKernels,
                 "On CUDA: vlmtrain's own kernels, which do in one pass what takes several of ATen's, or ATen's alone. "
                 "An own kernel that a card does not compute as ATen does is left out when the run starts.");
  table.add("training.seed", options.seed, "Seed of the order of the samples and of all other randomness.",
            std::optional{at_least<int64_t>(0)});
  declare(table, options.balance);
}

}  // namespace vlmtrain::engine
