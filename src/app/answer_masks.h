#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::app {

/// The masks that the tokens of an answer stand for, and the picture that they lie in.
struct AnswerMasks {
  at::Tensor image;                   ///< uint8 [3, height, width]
  std::vector<at::Tensor> predicted;  ///< uint8 [height, width] of 0 and 1
};

/// Of a sample that Processor::make_mask_prompt made of the record's answer: its masks in its first picture's own size.
AnswerMasks draw_answer_masks(const models::VisionLanguageModel& model, const io::Record& record,
                              const data::Sample& sample, at::Device device);

/// The record's own masks of that picture. Where they cannot be used, a warning says so, and there are none.
std::vector<at::Tensor> load_true_masks(const models::Processor& processor, const io::Record& record);

}  // namespace vlmtrain::app
