#include "vlmtrain/kernels/dropout.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/launch.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {

namespace {

/// `single` [rows, columns] beside `of_readers` of the same, one after the other; the streams are not filled in.
DropoutMask common(const at::Tensor& single, const at::Tensor& of_readers, const DropoutDraw& draw) {
  VLMTRAIN_CHECK(single.dim() == 2 && single.is_contiguous() && of_readers.is_contiguous() &&
                     of_readers.sizes().slice(of_readers.dim() - 2) == single.sizes(),
                 "dropout of {} beside {} elements", single.numel(), of_readers.numel());
  VLMTRAIN_CHECK(single.size(1) <= std::numeric_limits<uint32_t>::max(), "dropout of {} columns", single.size(1));
  VLMTRAIN_CHECK(!draw.streams.empty() && draw.streams.front().first_row == 0, "dropout of rows in no stream");
  constexpr int kHalf = 16;
  const auto keeps_below = static_cast<uint64_t>(std::llround(std::ldexp(1 - draw.probability, 2 * kHalf)));
  return {.element = element_of(single),
          .columns = single.size(1),
          .reader_stride = single.numel(),
          .readers = static_cast<int>(of_readers.numel() / single.numel()),
          .scale = static_cast<float>(1 / (1 - draw.probability)),
          .keeps_below = {static_cast<uint32_t>(keeps_below >> kHalf),
                          static_cast<uint32_t>(keeps_below) & std::numeric_limits<uint16_t>::max()},
          .first_row = 0,
          .rows = 0,
          .streams = 0,
          .stream = {}};
}

at::Tensor rows_of(const at::Tensor& all, const DropoutMask& mask) {
  return all.narrow(-2, mask.first_row, mask.rows);
}

/// Calls `start` with as many streams at a time as a launch takes.
template <class Start>
void for_streams(DropoutMask& mask, int64_t rows, std::span<const DropoutStream> streams, Start start) {
  while (!streams.empty()) {
    const auto own = streams.first(std::min<size_t>(kMostDropoutStreams, streams.size()));
    streams = streams.subspan(own.size());
    std::ranges::copy(own, std::begin(mask.stream));
    mask.streams = static_cast<int>(own.size());
    mask.first_row = own.front().first_row;
    mask.rows = (streams.empty() ? rows : streams.front().first_row) - mask.first_row;
    if (mask.rows > 0) start();
  }
}

}  // namespace

void dropout(const at::Tensor& dropped, const at::Tensor& x, const DropoutDraw& draw) {
  if (dropped.numel() == 0) return;
  Dropout call{.mask = common(x, dropped, draw), .x = x.const_data_ptr(), .dropped = dropped.mutable_data_ptr()};
  for_streams(call.mask, x.size(0), draw.streams, [&] {
    Launch("vlmtrain::dropout", {rows_of(x, call.mask)}, {rows_of(dropped, call.mask)})(launchers().dropout, call);
  });
}

void dropout_backward(const at::Tensor& sum, const at::Tensor& x, const DropoutDraw& draw) {
  if (x.numel() == 0) return;
  DropoutBackward call{.mask = common(sum, x, draw), .x = x.const_data_ptr(), .sum = sum.mutable_data_ptr()};
  for_streams(call.mask, sum.size(0), draw.streams, [&] {
    const at::Tensor own_sum = rows_of(sum, call.mask);
    Launch("vlmtrain::dropout_backward", {own_sum, rows_of(x, call.mask)}, {own_sum})(launchers().dropout_backward,
                                                                                      call);
  });
}

}  // namespace vlmtrain::kernels
