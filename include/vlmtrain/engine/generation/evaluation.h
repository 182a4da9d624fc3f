#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/engine/generation/generate.h"
#include "vlmtrain/engine/settings/step_layout.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::engine {

/// The results of a batch. Each list has one entry per sample, in order.
struct BatchEvaluationResult {
  std::vector<double> loss_sums;              ///< weighted sum of the cross-entropy of the sample's labels
  std::vector<std::vector<int64_t>> answers;  ///< generated token ids; empty unless prompts were given
  /// For models with a mask decoder: the sample's mask logits given the correct answer, fp32
  /// [masks, height, width] on the CPU, padding included; undefined for a sample without masks.
  /// Empty for other models.
  std::vector<at::Tensor> mask_logits{};
};

/// Returns the mask logits of all samples, concatenated: fp32 [masks, height, width] on the CPU, as
/// in BatchEvaluationResult. The samples need no target masks. REQUIRES: the model has a mask
/// decoder.
at::Tensor predict_mask_logits(const models::VisionLanguageModel& model, const std::vector<data::Sample>& samples,
                               const EvaluationLayout& layout, at::Device device);

/// Computes the losses of `samples`, and generates answers to `prompts`. `prompts` are the prompts
/// of the same samples in the same order, or empty. The vision tower runs once per batch. Records
/// no gradients. Synchronizes with the device. Out-of-memory errors propagate unchanged
/// (memory::detect_out_of_memory).
BatchEvaluationResult evaluate_batch(const models::VisionLanguageModel& model, std::vector<data::Sample> samples,
                                     std::vector<data::Sample> prompts, const EvaluationLayout& layout,
                                     const GenerationSettings& generation);

}  // namespace vlmtrain::engine
