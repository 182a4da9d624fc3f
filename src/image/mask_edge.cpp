#include "vlmtrain/image/mask_edge.h"

#include <ATen/ops/empty.h>

#include <vector>

#include "image/mask_check.h"

namespace vlmtrain::image {

at::Tensor find_mask_edge(const at::Tensor& mask) {
  check_is_mask(mask);
  const at::Tensor source = mask.contiguous();
  const int64_t height = source.size(0), width = source.size(1);
  const auto* const pixels = source.const_data_ptr<uint8_t>();
  const std::vector<uint8_t> zero_row(static_cast<size_t>(width), 0);
  at::Tensor result = at::empty({height, width}, at::kByte);
  auto* out = result.mutable_data_ptr<uint8_t>();
  for (int64_t y = 0; y < height; ++y, out += width) {
    const uint8_t* row = pixels + y * width;
    const uint8_t* previous_row = y > 0 ? row - width : zero_row.data();
    const uint8_t* next_row = y + 1 < height ? row + width : zero_row.data();
    for (int64_t x = 1; x + 1 < width; ++x) {
      // Without branches, so that it is done for many pixels at a time.
      const int has_outside_neighbor =
          (row[x - 1] == 0) | (row[x + 1] == 0) | (previous_row[x] == 0) | (next_row[x] == 0);
      out[x] = static_cast<uint8_t>((row[x] != 0) & has_outside_neighbor);
    }
    for (const int64_t x : {int64_t{0}, width - 1}) out[x] = row[x] != 0 ? 1 : 0;
  }
  return result;
}

}  // namespace vlmtrain::image
