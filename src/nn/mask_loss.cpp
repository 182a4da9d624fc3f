#include "vlmtrain/nn/mask_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_bilinear2d_backward.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {

namespace {

constexpr double kDiceSmoothing = 1e-5;  // MONAI's smooth_nr and smooth_dr

/// Bilinear resizing of one mask, of which only the first rows and columns are made.
class MaskResizer {
 public:
  MaskResizer(at::IntArrayRef from, at::IntArrayRef to)
      : height_(from[1]), width_(from[2]), rows_scale_(scale(to[1], height_)), columns_scale_(scale(to[2], width_)) {}

  /// [height, width] → `size`
  at::Tensor operator()(const at::Tensor& logits, const std::array<int64_t, 2>& size) const {
    return at::upsample_bilinear2d(logits.view({1, 1, height_, width_}), size, /*align_corners=*/false, rows_scale_,
                                   columns_scale_)
        .view(size);
  }

  /// `size` → [height, width]
  at::Tensor backward(const at::Tensor& gradient, const std::array<int64_t, 2>& size) const {
    return at::upsample_bilinear2d_backward(gradient.view({1, 1, size[0], size[1]}), size, {1, 1, height_, width_},
                                            /*align_corners=*/false, rows_scale_, columns_scale_)
        .view({height_, width_});
  }

 private:
  static double scale(int64_t to, int64_t from) { return static_cast<double>(to) / static_cast<double>(from); }

  int64_t height_, width_;
  double rows_scale_, columns_scale_;
};

/// What a mask's loss is made of, beside its logits.
struct MaskLossTerms {
  at::Tensor targets;
  const std::vector<std::array<int64_t, 2>>& sizes;
  double bce_weight, dice_weight;
  double pixels, masks;
  at::Tensor sums;  // what MaskLoss has
};

/// Adds the sums of a mask, `logits` and `targets` fp32 [rows, columns], and returns the gradient of the loss with
/// respect to the logits; undefined unless it is wanted.
at::Tensor add_mask_loss(const at::Tensor& logits, const at::Tensor& targets, const MaskLossTerms& terms,
                         bool needs_gradient) {
  const at::Tensor entropy =
      at::binary_cross_entropy_with_logits(logits, targets, /*weight=*/{}, /*pos_weight=*/{}, at::Reduction::Sum);
  at::Tensor probabilities = logits.sigmoid();
  const at::Tensor overlap = (probabilities * targets).sum().mul_(2).add_(kDiceSmoothing);
  const at::Tensor total = (probabilities.sum() + targets.sum()).add_(kDiceSmoothing);
  const at::Tensor ratio = overlap / total;
  terms.sums.select(0, 0).add_(entropy, 1.0 / terms.pixels);
  terms.sums.select(0, 1).add_(1.0 - ratio, 1.0 / terms.masks);
  if (!needs_gradient) return {};

  // With respect to p the Dice has the gradient (ratio − 2 g) / total, and p has p (1 − p) with respect to the logits.
  at::Tensor gradient = (ratio - targets * 2).mul_(terms.dice_weight / terms.masks / total);
  gradient.mul_(probabilities).mul_(1.0 - probabilities);
  return gradient.add_(probabilities.sub_(targets), terms.bce_weight / terms.pixels);
}

struct MaskLossFunction : torch::autograd::Function<MaskLossFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits,
                            const MaskLossTerms* terms) {
    const bool needs_gradient = logits.requires_grad();
    const at::Tensor gradients = needs_gradient ? at::empty_like(logits, at::MemoryFormat::Contiguous) : at::Tensor();
    const MaskResizer resize(logits.sizes(), terms->targets.sizes());
    for (int64_t i = 0; i < logits.size(0); ++i) {
      const auto& size = terms->sizes[static_cast<size_t>(i)];
      const at::Tensor targets = terms->targets[i].narrow(0, 0, size[0]).narrow(1, 0, size[1]).to(at::kFloat);
      const at::Tensor gradient =
          add_mask_loss(resize(logits[i].contiguous(), size), targets.contiguous(), *terms, needs_gradient);
      if (needs_gradient) gradients[i].copy_(resize.backward(gradient, size));
    }
    context->saved_data["gradients"] = gradients;
    return terms->sums[0] * terms->bce_weight + terms->sums[1] * terms->dice_weight;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    // The incoming gradient is the loss scale; it stays on the device.
    at::Tensor gradient = context->saved_data["gradients"].toTensor();
    context->saved_data.erase("gradients");
    return {gradient.mul_(gradients[0]), {}};
  }
};

}  // namespace

MaskLoss mask_loss(const at::Tensor& logits, const at::Tensor& targets,
                   const std::vector<std::array<int64_t, 2>>& sizes, double bce_weight, double dice_weight,
                   double pixels, double masks) {
  VLMTRAIN_CHECK(logits.dim() == 3 && targets.dim() == 3 && logits.size(0) == targets.size(0) &&
                     logits.size(0) == std::ssize(sizes),
                 "{} masks, {} targets and {} sizes", logits.size(0), targets.size(0), sizes.size());
  for (const auto& [rows, columns] : sizes) {
    VLMTRAIN_CHECK(rows > 0 && rows <= targets.size(1) && columns > 0 && columns <= targets.size(2),
                   "{}×{} pixels of a target of {}×{}", rows, columns, targets.size(1), targets.size(2));
  }
  const MaskLossTerms terms{
      .targets = targets,
      .sizes = sizes,
      .bce_weight = bce_weight,
      .dice_weight = dice_weight,
      .pixels = pixels,
      .masks = masks,
      .sums = at::zeros({2}, at::TensorOptions(at::kFloat).device(logits.device())),
  };
  return {.loss = MaskLossFunction::apply(logits, &terms), .sums = terms.sums};
}

}  // namespace vlmtrain::nn
