#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/engine/generation/generate.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/layers/losses.h"

namespace vlmtrain::engine {

/// The chunk sizes of an evaluation pass. Results depend on them only by rounding.
struct EvaluationLayout {
  int64_t vision_tiles_per_pass = 0;                    ///< see StepLayout; 0: all tiles of the batch
  int64_t loss_chunk_rows = nn::kDefaultLossChunkRows;  ///< rows of logits per chunk
};

/// The layout with the least memory. Chunks below 128 rows save little, because the output weight
/// is far larger than their logits.
inline constexpr EvaluationLayout kMinMemoryEvaluationLayout{.vision_tiles_per_pass = 1, .loss_chunk_rows = 128};

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
