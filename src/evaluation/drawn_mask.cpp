#include "vlmtrain/evaluation/drawn_mask.h"

#include <ATen/ops/gt.h>
#include <ATen/ops/upsample_bilinear2d.h>

namespace vlmtrain::evaluation {

at::Tensor mask_in_picture(const at::Tensor& logits, int64_t side, const data::FilledPart& filled,
                           image::ImageSize picture) {
  const auto resized = [](const at::Tensor& map, int64_t rows, int64_t columns) {
    return at::upsample_bilinear2d(map, {rows, columns}, /*align_corners=*/false);
  };
  const at::Tensor square = resized(logits.view({1, 1, logits.size(0), logits.size(1)}), side, side);
  const at::Tensor part = square.narrow(2, 0, filled.rows).narrow(3, 0, filled.columns).contiguous();
  return resized(part, picture.height, picture.width)[0][0].gt(0).to(at::kByte);
}

}  // namespace vlmtrain::evaluation
