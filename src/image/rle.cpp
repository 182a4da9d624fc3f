#include <ATen/ops/empty.h>

#include <algorithm>

#include "image/mask_check.h"
#include "image/transpose.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/mask.h"
#include "vlmtrain/image/size.h"

namespace vlmtrain::image {

static_assert(io::kMaxMaskPixels == kMaxImagePixels);

at::Tensor decode_rle(const Rle& rle) {
  const int64_t pixels = rle.height * rle.width;
  std::vector<uint8_t> columns(static_cast<size_t>(pixels));
  int64_t offset = 0;
  uint8_t value = 0;
  for (const int64_t count : rle.counts) {
    VLMTRAIN_CHECK(count >= 0 && count <= pixels - offset, "runs beyond a mask's {} pixels", pixels);
    std::fill_n(columns.begin() + offset, count, value);
    offset += count;
    value ^= 1;
  }
  VLMTRAIN_CHECK(offset == pixels, "runs of {} pixels for a mask of {}", offset, pixels);
  at::Tensor mask = at::empty({rle.height, rle.width}, at::kByte);
  transpose_bytes(columns.data(), rle.height, rle.width, rle.height, mask.mutable_data_ptr<uint8_t>(), rle.width);
  return mask;
}

Rle encode_rle(const at::Tensor& mask) {
  check_is_mask(mask);
  const at::Tensor rows = mask.contiguous();
  Rle rle{.height = mask.size(0), .width = mask.size(1), .counts = {}};
  std::vector<uint8_t> columns(static_cast<size_t>(mask.numel()));
  transpose_bytes(rows.const_data_ptr<uint8_t>(), rle.width, rle.height, rle.width, columns.data(), rle.height);
  bool value = false;
  for (auto run_begin = columns.cbegin(); run_begin != columns.cend(); value = !value) {
    const auto run_end =
        std::find_if(run_begin, columns.cend(), [value](uint8_t pixel) { return (pixel != 0) != value; });
    rle.counts.push_back(run_end - run_begin);
    run_begin = run_end;
  }
  return rle;
}

}  // namespace vlmtrain::image
