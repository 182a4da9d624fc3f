#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "vlmtrain/data/sample.h"
#include "vlmtrain/engine/generate.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/fused_loss.h"

namespace vlmtrain::engine {

/// How a batch passes the model. None of it changes a number beyond rounding.
struct EvaluationLayout {
  int64_t vision_tiles_per_pass = 0;                    ///< as StepLayout's, for the batch; 0: all
  int64_t loss_chunk_rows = nn::kDefaultLossChunkRows;  ///< rows of logits that exist at a time
};

/// That takes least memory.
inline constexpr EvaluationLayout kMinMemoryEvaluationLayout{.vision_tiles_per_pass = 1, .loss_chunk_rows = 128};

/// What a batch is worth, by sample.
struct BatchEvaluation {
  std::vector<double> losses;                 ///< the sum of the cross-entropy of its label tokens
  std::vector<std::vector<int64_t>> answers;  ///< empty where none were asked for
  /// Of a model that draws masks, those of its right answer: fp32 logits [masks, height, width] on the CPU, over the
  /// whole squares; undefined for a sample without a mask. Else empty.
  std::vector<at::Tensor> mask_logits{};
};

/// The logits of masks, as BatchEvaluation's, one behind the other: of samples whose targets need not be known.
at::Tensor predict_masks(const models::VisionLanguageModel& model, const std::vector<data::Sample>& samples,
                         const EvaluationLayout& layout, at::Device device);

/// Loss of `samples`, and answers to `prompts`, which are those of the same samples, or none. A batch's pictures pass
/// the vision tower once. Without gradients; waits for the device. Throws whatever an operation throws, a lack of
/// memory as it is (memory::detect_out_of_memory).
BatchEvaluation evaluate_batch(const models::VisionLanguageModel& model, std::vector<data::Sample> samples,
                               std::vector<data::Sample> prompts, const EvaluationLayout& layout,
                               const GenerateSettings& generation);

}  // namespace vlmtrain::engine
