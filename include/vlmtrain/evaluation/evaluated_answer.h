#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/evaluation/metrics.h"
#include "vlmtrain/evaluation/scores.h"

namespace vlmtrain::evaluation {

/// A predicted mask and the true one, uint8 [height, width] on the CPU with values 0 and 1, in the
/// size of their image.
struct MaskPrediction {
  std::string structure{};  ///< name of the structure; may be empty
  int64_t image_index = 0;  ///< index in Record::images
  at::Tensor predicted_mask{};
  at::Tensor true_mask{};
  double dice = 0;  ///< MaskScore::dice of the two
};

/// An answer of the model with the expected answer.
struct EvaluatedAnswer {
  std::string id, task;
  std::string question;              ///< the last one of the record, without placeholders of media
  std::string expected, prediction;  ///< without surrounding white space
  AnswerType answer_type = AnswerType::kOpen;
  std::vector<MaskPrediction> masks = {};   ///< with teacher forcing
  int64_t index = 0;                        ///< index of the record
  MetricSums metric_sums = {};              ///< of this answer
  std::optional<BoxComparison> boxes = {};  ///< set if the expected answer has boxes of the record
};

}  // namespace vlmtrain::evaluation
