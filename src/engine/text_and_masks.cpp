#include "vlmtrain/engine/text_and_masks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <vector>

#include "engine/text_loss.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/place.h"
#include "vlmtrain/nn/mask_loss.h"

namespace vlmtrain::engine {

namespace {

constexpr size_t kLabelTokens = 0, kMasks = 1, kPixels = 2;  // places in Normalizers
constexpr int64_t kNumLosses = 3;                            // of MaskLosses, in its order

class TextAndMasksStepLoss final : public StepLoss {
 public:
  TextAndMasksStepLoss(const models::VisionLanguageModel& model, const Normalizers& normalizers, int64_t chunk_rows,
                       const TaskSettings& tasks, const MaskLossWeights& weights)
      : model_(model),
        normalizers_(normalizers),
        weights_(weights),
        text_(model, normalizers.at(kLabelTokens), chunk_rows, tasks) {
    const memory::ComponentScope loss(memory::Component::kLoss);
    losses_ = at::zeros({kNumLosses}, at::TensorOptions(at::kFloat).device(model.output_weight().device()));
  }

  at::Tensor forward(const data::MicroBatch& batch) override {
    const int64_t labels = batch.label_tokens(), masks = batch.masks.count();
    const at::Tensor positions =
        masks > 0 ? at::cat({batch.label_positions, batch.masks.positions}) : batch.label_positions;
    const at::Tensor hidden = model_.forward(batch, {.positions = positions}).hidden;
    const at::Tensor text = text_.forward(hidden.narrow(0, 0, labels), batch);
    losses_[0] += text.detach();
    if (masks == 0) return text * weights_.text;
    return text * weights_.text + compute_mask_loss(batch.masks, hidden.narrow(0, labels, masks));
  }

  std::vector<at::Tensor> sums() const override {
    std::vector<at::Tensor> sums = text_.sums();
    sums.push_back(losses_);
    return sums;
  }

  at::Tensor scalars() const override {
    const at::Tensor task_scalars = text_.scalars();
    return task_scalars.defined() ? at::cat({losses_, task_scalars}) : losses_;
  }

 private:
  at::Tensor compute_mask_loss(const data::MaskBatch& masks, const at::Tensor& hidden) {
    VLMTRAIN_CHECK(masks.targets.defined(), "masks to be learnt that are not known");
    const at::Tensor logits = model_.mask_logits(masks, hidden, model_.vision_tiles_per_pass());
    const memory::ComponentScope loss(memory::Component::kLoss);
    std::vector<std::array<int64_t, 2>> sizes;
    sizes.reserve(masks.valid_regions.size());
    for (const data::ValidRegion& part : masks.valid_regions) sizes.push_back({part.rows, part.columns});
    const nn::MaskLoss result = nn::mask_loss(logits, masks.targets, sizes, weights_.bce, weights_.dice,
                                              normalizers_.at(kPixels), normalizers_.at(kMasks));
    losses_.narrow(0, 1, 2) += result.sums;
    return result.loss;
  }

  const models::VisionLanguageModel& model_;
  Normalizers normalizers_;
  MaskLossWeights weights_;
  TextLoss text_;
  at::Tensor losses_;  // MaskLosses so far
};

}  // namespace

Normalizers TextAndMasks::normalizers(std::span<const data::Sample> samples) const {
  Normalizers normalizers = text_.normalizers(samples);
  normalizers.resize(kPixels + 1);
  for (const data::Sample& sample : samples) {
    normalizers[kMasks] += static_cast<double>(sample.masks.count());
    normalizers[kPixels] += static_cast<double>(sample.masks.count_valid_pixels());
  }
  return normalizers;
}

std::unique_ptr<StepLoss> TextAndMasks::begin_step(const models::VisionLanguageModel& model,
                                                   const Normalizers& normalizers, const StepLayout& layout) const {
  return std::make_unique<TextAndMasksStepLoss>(model, normalizers, layout.loss_chunk_rows, text_.tasks(), weights_);
}

ObjectiveMetrics TextAndMasks::metrics(std::span<const double> scalars, const std::vector<TaskCounts>& counts) const {
  ObjectiveMetrics metrics = text_.metrics(scalars.subspan(kNumLosses), counts);
  metrics.masks = MaskLosses{.text = scalars[0], .bce = scalars[1], .dice = scalars[2]};
  return metrics;
}

}  // namespace vlmtrain::engine
