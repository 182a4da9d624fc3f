#include "models/network/patch_rows.h"

namespace vlmtrain::models {

at::Tensor patch_rows(const at::Tensor& pixels, int64_t patch) {
  const int64_t tiles = pixels.size(0);
  const int64_t rows = pixels.size(2) / patch, columns = pixels.size(3) / patch;
  return pixels.narrow(2, 0, rows * patch)
      .narrow(3, 0, columns * patch)
      .view({tiles, 3, rows, patch, columns, patch})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({tiles * rows * columns, 3 * patch * patch});
}

}  // namespace vlmtrain::models
