#include "models/network/pixel_shuffle.h"

namespace vlmtrain::models {

at::Tensor pixel_shuffle(const at::Tensor& patches, int64_t side, int64_t scale) {
  const int64_t features = patches.size(1);
  const int64_t cells = side / scale;
  return patches.view({-1, cells, scale, cells, scale * features})
      .transpose(2, 3)
      .reshape({-1, scale * scale * features});
}

}  // namespace vlmtrain::models
