#include "vlmtrain/evaluation/drawn_mask.h"

#include <ATen/ops/gt.h>
#include <ATen/ops/upsample_bilinear2d.h>

namespace vlmtrain::evaluation {

at::Tensor postprocess_mask(const at::Tensor& logits, int64_t side, const data::ValidRegion& filled,
                            image::ImageSize image_size) {
  const auto resize = [](const at::Tensor& map, int64_t rows, int64_t columns) {
    return at::upsample_bilinear2d(map, {rows, columns}, /*align_corners=*/false);
  };
  const at::Tensor square = resize(logits.view({1, 1, logits.size(0), logits.size(1)}), side, side);
  const at::Tensor filled_region = square.narrow(2, 0, filled.rows).narrow(3, 0, filled.columns).contiguous();
  return resize(filled_region, image_size.height, image_size.width)[0][0].gt(0).to(at::kByte);
}

}  // namespace vlmtrain::evaluation
