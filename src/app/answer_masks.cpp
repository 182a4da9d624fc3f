#include "app/answer_masks.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/engine/evaluation.h"
#include "vlmtrain/evaluation/drawn_mask.h"
#include "vlmtrain/image/decode.h"

namespace vlmtrain::app {

AnswerMasks draw_answer_masks(const models::VisionLanguageModel& model, const io::Record& record,
                              const data::Sample& sample, at::Device device) {
  AnswerMasks masks{.image = image::decode_image(record.images.front()), .predicted = {}};
  const image::ImageSize size{.height = masks.image.size(1), .width = masks.image.size(2)};
  const at::Tensor logits = engine::predict_masks(model, {sample}, {}, device);
  for (int64_t i = 0; i < sample.masks.count(); ++i) {
    masks.predicted.push_back(evaluation::postprocess_mask(logits[i], sample.masks.pixels.size(-1),
                                                           sample.masks.valid_regions[static_cast<size_t>(i)], size));
  }
  return masks;
}

std::vector<at::Tensor> load_true_masks(const models::Processor& processor, const io::Record& record) {
  std::string problem = record.mask_problem;
  try {
    const auto masks = problem.empty() ? processor.load_masks(record) : std::vector<at::Tensor>{};
    std::vector<at::Tensor> first_image_masks;
    for (size_t i = 0; i < masks.size(); ++i) {
      if (record.masks[i].image == 0) first_image_masks.push_back(masks[i]);
    }
    if (problem.empty()) return first_image_masks;
  } catch (const UserError& error) {
    if (error.code() != ExitCode::kBadData) throw;
    problem = error.what();
  }
  spdlog::warn("the record's own masks are not shown: {}", problem);
  return {};
}

}  // namespace vlmtrain::app
