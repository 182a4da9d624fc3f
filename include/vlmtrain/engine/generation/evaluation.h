#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/engine/generation/generate.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/layers/losses.h"

namespace vlmtrain::engine {

/// The chunking of an evaluation pass. Results depend on it only by rounding.
struct EvaluationLayout {
  int64_t vision_tiles_per_pass = 0;                    ///< see StepLayout; 0: all tiles of the batch
  int64_t loss_chunk_rows = nn::kDefaultLossChunkRows;  ///< rows of logits per chunk
};

/// The layout of minimum memory. Chunks below 128 rows save little, as the output weight is far
/// larger.
inline constexpr EvaluationLayout kMinMemoryEvaluationLayout{.vision_tiles_per_pass = 1, .loss_chunk_rows = 128};

/// The results of a batch by sample.
struct BatchEvaluation {
  std::vector<double> losses;                 ///< sum of the cross-entropy of its label tokens
  std::vector<std::vector<int64_t>> answers;  ///< empty unless prompts were given
  /// For models with a mask decoder: fp32 logits [masks, height, width] on the CPU over the whole
  /// padded squares, given the correct answer; undefined for samples without masks. Else empty.
  std::vector<at::Tensor> mask_logits{};
};

/// Returns the mask logits of BatchEvaluation for all samples concatenated. The targets of the
/// samples may be unknown.
at::Tensor predict_masks(const models::VisionLanguageModel& model, const std::vector<data::Sample>& samples,
                         const EvaluationLayout& layout, at::Device device);

/// Computes the loss of `samples` and answers to `prompts`, which are those of the same samples, or
/// empty. The vision tower runs once per batch. Records no gradients and waits for the device.
/// Throws out-of-memory errors as they are (memory::detect_out_of_memory).
BatchEvaluation evaluate_batch(const models::VisionLanguageModel& model, std::vector<data::Sample> samples,
                               std::vector<data::Sample> prompts, const EvaluationLayout& layout,
                               const GenerateSettings& generation);

}  // namespace vlmtrain::engine
