#include "vlmtrain/image/resize_mask.h"

#include <ATen/ops/empty.h>

#include <vector>

#include "image/mask_check.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

int64_t map_to_source(int64_t output, int64_t output_size, int64_t input_size) {
  return (2 * output + 1) * input_size / (2 * output_size);
}

}  // namespace

at::Tensor resize_mask(const at::Tensor& mask, int64_t height, int64_t width) {
  check_is_mask(mask);
  VLMTRAIN_CHECK(height > 0 && width > 0, "no mask of {} x {} pixels", height, width);
  at::Tensor source = mask.contiguous();
  if (source.size(0) == height && source.size(1) == width) return source;
  std::vector<int64_t> columns(static_cast<size_t>(width));
  for (int64_t x = 0; x < width; ++x) columns[x] = map_to_source(x, width, source.size(1));
  at::Tensor result = at::empty({height, width}, at::kByte);
  auto* output = result.mutable_data_ptr<uint8_t>();
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* row = source.const_data_ptr<uint8_t>() + map_to_source(y, height, source.size(0)) * source.size(1);
    for (const int64_t x : columns) *output++ = row[x];
  }
  return result;
}

}  // namespace vlmtrain::image
