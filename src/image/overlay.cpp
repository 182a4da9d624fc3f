#include "vlmtrain/image/overlay.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "vlmtrain/base/error.h"
#include "vlmtrain/image/mask.h"

namespace vlmtrain::image {
namespace {

/// An outline is 1/256 of the image's height wide: 1 pixel in a tile of 384, visible in a scan of
/// 2,000. A choice by eye.
constexpr int64_t kImageHeightPerOutlinePixel = 256;

/// The opacity of filled masks. Chosen by eye: both the image and the mask are visible.
constexpr int kFillOpacityPercent = 40;

/// The colors of predicted masks, repeated if there are more masks. Chosen to differ from the green
/// of the true masks.
constexpr std::array<uint8_t, 3> kPredictionColors[] = {
    kPredictedBoxColor, {60, 130, 255}, {220, 60, 200}, {250, 220, 50}};
constexpr std::array<uint8_t, 3> kGroundTruthColor = kTrueBoxColor;

/// Returns a mask of the set pixels within `thickness` pixels of the outside. Removes the edge of
/// the mask `thickness` times.
at::Tensor extract_outline(const at::Tensor& mask, int64_t thickness) {
  at::Tensor interior = mask.ne(0).to(at::kByte);
  const at::Tensor mask_bytes = interior.clone();
  for (int64_t i = 0; i < thickness; ++i) interior.sub_(extract_mask_edge(interior));
  return mask_bytes.sub_(interior);
}

/// Blends the set pixels of `image`, contiguous [3, height, width], with `opacity_percent` of
/// `color`. `mask`: [height, width]; nonzero pixels count as set.
void blend_color(at::Tensor& image, const at::Tensor& mask, const std::array<uint8_t, 3>& color, int opacity_percent) {
  const at::Tensor contiguous_mask = mask.contiguous();
  const auto* const mask_pixels = contiguous_mask.const_data_ptr<uint8_t>();
  const int64_t num_pixels = contiguous_mask.numel();
  auto* plane = image.mutable_data_ptr<uint8_t>();
  for (const int channel : color) {
    for (int64_t i = 0; i < num_pixels; ++i) {
      if (mask_pixels[i] != 0)
        plane[i] = static_cast<uint8_t>((plane[i] * (100 - opacity_percent) + channel * opacity_percent + 50) / 100);
    }
    plane += num_pixels;
  }
}

/// An outline of a box is 1/128 of the image's shorter side wide: 2 pixels in a tile of 384. A
/// choice by eye.
constexpr int64_t kImageSidePerBoxOutlinePixel = 128;
/// The arm of a point's cross, in widths of an outline. A choice by eye.
constexpr int64_t kCrossArmOutlines = 4;

/// Fills the pixels [top, bottom) x [left, right) of `image` with `color`.
void fill_rectangle(at::Tensor& image, int64_t top, int64_t left, int64_t bottom, int64_t right,
                    const std::array<uint8_t, 3>& color) {
  top = std::max<int64_t>(top, 0);
  left = std::max<int64_t>(left, 0);
  bottom = std::min(bottom, image.size(1));
  right = std::min(right, image.size(2));
  if (top >= bottom || left >= right) return;
  for (int64_t channel = 0; channel < 3; ++channel) {
    image.select(0, channel)
        .narrow(0, top, bottom - top)
        .narrow(1, left, right - left)
        .fill_(static_cast<int64_t>(color[static_cast<size_t>(channel)]));
  }
}

void check_drawable(const at::Tensor& image) {
  VLMTRAIN_CHECK(image.dim() == 3 && image.size(0) == 3 && image.scalar_type() == at::kByte && image.is_cpu(),
                 "the image to draw on must be uint8 [3, height, width] on the CPU");
}

}  // namespace

at::Tensor draw_boxes(const at::Tensor& image, const std::vector<OverlayBox>& boxes) {
  check_drawable(image);
  at::Tensor result = image.clone(at::MemoryFormat::Contiguous);
  const int64_t width = std::max<int64_t>(1, std::min(image.size(1), image.size(2)) / kImageSidePerBoxOutlinePixel);
  for (const auto& [box, color] : boxes) {
    const auto left = std::llround(box.top_left.x), top = std::llround(box.top_left.y);
    const auto right = std::llround(box.bottom_right.x), bottom = std::llround(box.bottom_right.y);
    if (box.is_point()) {
      const int64_t arm = kCrossArmOutlines * width;
      fill_rectangle(result, top - width / 2, left - arm, top - width / 2 + width, left + arm, color);
      fill_rectangle(result, top - arm, left - width / 2, top + arm, left - width / 2 + width, color);
      continue;
    }
    fill_rectangle(result, top, left, std::min<int64_t>(top + width, bottom), right, color);
    fill_rectangle(result, std::max<int64_t>(bottom - width, top), left, bottom, right, color);
    fill_rectangle(result, top, left, bottom, std::min<int64_t>(left + width, right), color);
    fill_rectangle(result, top, std::max<int64_t>(right - width, left), bottom, right, color);
  }
  return result;
}

at::Tensor draw_masks(const at::Tensor& image, const std::vector<OverlayMask>& masks) {
  check_drawable(image);
  at::Tensor result = image.clone(at::MemoryFormat::Contiguous);
  const int64_t thickness = std::max<int64_t>(1, image.size(1) / kImageHeightPerOutlinePixel);
  for (const OverlayMask& overlay : masks) {
    check_is_mask(overlay.mask);
    VLMTRAIN_CHECK(overlay.mask.size(0) == image.size(1) && overlay.mask.size(1) == image.size(2),
                   "a mask of {} x {} pixels does not match an image of {} x {}", overlay.mask.size(1),
                   overlay.mask.size(0), image.size(2), image.size(1));
    if (overlay.is_filled) blend_color(result, overlay.mask, overlay.color, kFillOpacityPercent);
    blend_color(result, extract_outline(overlay.mask, thickness), overlay.color, 100);
  }
  return result;
}

at::Tensor draw_mask_comparison(const at::Tensor& image, const std::vector<at::Tensor>& predictions,
                                const std::vector<at::Tensor>& ground_truths) {
  std::vector<OverlayMask> masks;
  for (size_t i = 0; i < predictions.size(); ++i) {
    masks.push_back(
        {.mask = predictions[i], .color = kPredictionColors[i % std::size(kPredictionColors)], .is_filled = true});
  }
  for (const at::Tensor& ground_truth : ground_truths)
    masks.push_back({.mask = ground_truth, .color = kGroundTruthColor, .is_filled = false});
  return draw_masks(image, masks);
}

}  // namespace vlmtrain::image
