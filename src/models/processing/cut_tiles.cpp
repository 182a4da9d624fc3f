#include "models/processing/cut_tiles.h"

namespace vlmtrain::models {

void cut_tiles(const at::Tensor& image, int64_t tile, const at::Tensor& cells) {
  const int64_t rows = image.size(1) / tile, columns = image.size(2) / tile;
  cells.view({rows, columns, 3, tile, tile}).copy_(image.view({3, rows, tile, columns, tile}).permute({1, 3, 0, 2, 4}));
}

}  // namespace vlmtrain::models
