#include "vlmtrain/image/overlay.h"

#include <algorithm>
#include <iterator>

#include "image/mask_check.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/mask_edge.h"

namespace vlmtrain::image {
namespace {

constexpr int kFillPercent = 40;

/// Of a model's masks, orange first; none of them is near the green of the true ones.
constexpr std::array<uint8_t, 3> kDrawn[] = {{255, 140, 0}, {60, 130, 255}, {220, 60, 200}, {250, 220, 50}};
constexpr std::array<uint8_t, 3> kTruth{0, 210, 90};

/// The pixels of a mask that are no more than `thickness` from its outside: edge by edge.
at::Tensor outline(const at::Tensor& mask, int64_t thickness) {
  at::Tensor inner = mask.ne(0).to(at::kByte);
  const at::Tensor whole = inner.clone();
  for (int64_t i = 0; i < thickness; ++i) inner.sub_(mask_edge(inner));
  return whole.sub_(inner);
}

/// Lays `percent` of the colour on the pixels of the mask.
void blend(at::Tensor& picture, const at::Tensor& mask, const std::array<uint8_t, 3>& colour, int percent) {
  const at::Tensor where = mask.contiguous();
  const auto* const belongs = where.const_data_ptr<uint8_t>();
  const int64_t pixels = where.numel();
  auto* plane = picture.mutable_data_ptr<uint8_t>();
  for (const int part : colour) {
    for (int64_t i = 0; i < pixels; ++i) {
      if (belongs[i] != 0) plane[i] = static_cast<uint8_t>((plane[i] * (100 - percent) + part * percent + 50) / 100);
    }
    plane += pixels;
  }
}

}  // namespace

at::Tensor draw_masks(const at::Tensor& picture, const std::vector<OverlayMask>& masks) {
  VLMTRAIN_CHECK(picture.dim() == 3 && picture.size(0) == 3 && picture.scalar_type() == at::kByte && picture.is_cpu(),
                 "a picture to draw on is uint8 [3, height, width] on the CPU");
  at::Tensor drawn = picture.clone(at::MemoryFormat::Contiguous);
  const int64_t thickness = std::max<int64_t>(1, picture.size(1) / 256);
  for (const OverlayMask& overlay : masks) {
    check_is_mask(overlay.mask);
    VLMTRAIN_CHECK(overlay.mask.size(0) == picture.size(1) && overlay.mask.size(1) == picture.size(2),
                   "a mask of {} x {} pixels on a picture of {} x {}", overlay.mask.size(1), overlay.mask.size(0),
                   picture.size(2), picture.size(1));
    if (overlay.filled) blend(drawn, overlay.mask, overlay.colour, kFillPercent);
    blend(drawn, outline(overlay.mask, thickness), overlay.colour, 100);
  }
  return drawn;
}

at::Tensor draw_beside_truth(const at::Tensor& picture, const std::vector<at::Tensor>& drawn,
                             const std::vector<at::Tensor>& truths) {
  std::vector<OverlayMask> masks;
  for (size_t i = 0; i < drawn.size(); ++i) {
    masks.push_back({.mask = drawn[i], .colour = kDrawn[i % std::size(kDrawn)], .filled = true});
  }
  for (const at::Tensor& truth : truths) masks.push_back({.mask = truth, .colour = kTruth, .filled = false});
  return draw_masks(picture, masks);
}

}  // namespace vlmtrain::image
