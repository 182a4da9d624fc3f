#include "train/batch_scaling.h"

#include <fmt/format.h>

#include "vlmtrain/base/error.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {

void check_batch_scaling(const engine::TrainingOptions& training) {
  const engine::BalanceOptions& balance = training.balance;
  const bool scales = balance.batch_scaling != engine::BatchScaling::kNone;
  if (balance.global_batch_tokens && !training.max_steps) {
    throw usage_error(
        "training.global_batch_tokens: how many steps an epoch takes is not known beforehand then; set "
        "training.max_steps");
  }
  if (balance.global_batch_tokens && balance.reference_batch_size) {
    throw usage_error(
        "training.reference_batch_size: counts samples, and with training.global_batch_tokens a step has no fixed "
        "number of them; set one of the two to auto");
  }
  if (scales && !balance.global_batch_tokens && !balance.reference_batch_size) {
    throw usage_error(
        "training.batch_scaling: {} has nothing to scale by; set training.reference_batch_size or "
        "training.global_batch_tokens, or set it to none",
        engine::to_string(balance.batch_scaling));
  }
  if (!scales && balance.reference_batch_size) {
    throw usage_error(
        "training.reference_batch_size: has no effect without a rule; set training.batch_scaling to sqrt (as a rule "
        "for "
        "AdamW) or linear");
  }
}

double compute_reference_lr_factor(const engine::TrainingOptions& training) {
  if (!training.balance.reference_batch_size) return 1.0;
  return engine::compute_batch_scale(
      training.balance.batch_scaling,
      static_cast<double>(training.global_batch_size) / static_cast<double>(*training.balance.reference_batch_size));
}

double compute_step_lr_factor(const engine::TrainingOptions& training, int64_t tokens) {
  if (!training.balance.global_batch_tokens) return 1.0;
  return engine::compute_batch_scale(
      training.balance.batch_scaling,
      static_cast<double>(tokens) / static_cast<double>(*training.balance.global_batch_tokens));
}

std::string describe_batch_scaling(const engine::TrainingOptions& training) {
  const engine::BalanceOptions& balance = training.balance;
  const std::string rule = engine::to_string(balance.batch_scaling);
  if (balance.global_batch_tokens) {
    const std::string text = fmt::format("steps of about {} tokens, at most {} samples", *balance.global_batch_tokens,
                                         training.global_batch_size);
    if (balance.batch_scaling == engine::BatchScaling::kNone) return text + "; the learning rates do not follow them";
    return text + fmt::format("; the learning rates of a step are multiplied by {} (batch_scaling {})",
                              balance.batch_scaling == engine::BatchScaling::kSqrt
                                  ? fmt::format("√(its tokens / {})", *balance.global_batch_tokens)
                                  : fmt::format("its tokens / {}", *balance.global_batch_tokens),
                              rule);
  }
  if (!balance.reference_batch_size) return {};
  const engine::LearningRates peak = compute_learning_rates(training, 1.0);
  return fmt::format(
      "batch_scaling {}: learning rates were found with batches of {} samples and are multiplied by {:.4g} for {}: at "
      "their peak {:.4g} for the language model, {:.4g} for the projector, {:.4g} for the vision tower",
      rule, *balance.reference_batch_size, compute_reference_lr_factor(training), training.global_batch_size,
      peak.language_model, peak.projector, peak.vision_tower);
}

}  // namespace vlmtrain::train
