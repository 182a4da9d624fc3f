#include "app/answer_masks.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/engine/evaluation.h"
#include "vlmtrain/evaluation/drawn_mask.h"
#include "vlmtrain/image/decode.h"

namespace vlmtrain::app {

AnswerMasks draw_answer_masks(const models::VisionLanguageModel& model, const io::Record& record,
                              const data::Sample& sample, at::Device device) {
  AnswerMasks masks{.picture = image::decode_image(record.images.front()), .drawn = {}};
  const image::ImageSize size{.height = masks.picture.size(1), .width = masks.picture.size(2)};
  const at::Tensor logits = engine::draw_masks(model, {sample}, {}, device);
  for (int64_t i = 0; i < sample.masks.count(); ++i) {
    masks.drawn.push_back(evaluation::mask_in_picture(logits[i], sample.masks.pixels.size(-1),
                                                      sample.masks.filled[static_cast<size_t>(i)], size));
  }
  return masks;
}

std::vector<at::Tensor> true_masks(const models::Processor& processor, const io::Record& record) {
  std::string problem = record.mask_problem;
  try {
    const auto masks = problem.empty() ? processor.masks_of(record) : std::vector<at::Tensor>{};
    std::vector<at::Tensor> of_first;
    for (size_t i = 0; i < masks.size(); ++i) {
      if (record.masks[i].image == 0) of_first.push_back(masks[i]);
    }
    if (problem.empty()) return of_first;
  } catch (const UserError& error) {
    if (error.code() != ExitCode::kBadData) throw;
    problem = error.what();
  }
  spdlog::warn("the record's own masks are not shown: {}", problem);
  return {};
}

}  // namespace vlmtrain::app
