#include "vlmtrain/kernels/dropout.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/launch.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {

namespace {

/// Returns the mask for `single` [rows, columns] and `per_reader` [readers, rows, columns], without
/// streams.
DropoutMask make_mask(const at::Tensor& single, const at::Tensor& per_reader, const DropoutParams& params) {
  VLMTRAIN_CHECK(single.dim() == 2 && single.is_contiguous() && per_reader.is_contiguous() &&
                     per_reader.sizes().slice(per_reader.dim() - 2) == single.sizes(),
                 "dropout of {} beside {} elements", single.numel(), per_reader.numel());
  VLMTRAIN_CHECK(single.size(1) <= std::numeric_limits<uint32_t>::max(), "dropout of {} columns", single.size(1));
  VLMTRAIN_CHECK(!params.streams.empty() && params.streams.front().first_row == 0, "dropout of rows in no stream");
  constexpr int kHalfBits = 16;
  const auto keep_thresholds = static_cast<uint64_t>(std::llround(std::ldexp(1 - params.probability, 2 * kHalfBits)));
  return {.element = get_element_type(single),
          .columns = single.size(1),
          .reader_stride = single.numel(),
          .readers = static_cast<int>(per_reader.numel() / single.numel()),
          .scale = static_cast<float>(1 / (1 - params.probability)),
          .keep_thresholds = {static_cast<uint32_t>(keep_thresholds >> kHalfBits),
                              static_cast<uint32_t>(keep_thresholds) & std::numeric_limits<uint16_t>::max()},
          .first_row = 0,
          .rows = 0,
          .streams = 0,
          .stream = {}};
}

at::Tensor narrow_rows(const at::Tensor& tensor, const DropoutMask& mask) {
  return tensor.narrow(-2, mask.first_row, mask.rows);
}

/// Calls `launch_batch` for batches of as many streams as a launch takes.
template <class LaunchBatch>
void for_each_batch(DropoutMask& mask, int64_t rows, std::span<const DropoutStream> streams, LaunchBatch launch_batch) {
  while (!streams.empty()) {
    const auto batch = streams.first(std::min<size_t>(kMaxDropoutStreams, streams.size()));
    streams = streams.subspan(batch.size());
    std::ranges::copy(batch, std::begin(mask.stream));
    mask.streams = static_cast<int>(batch.size());
    mask.first_row = batch.front().first_row;
    mask.rows = (streams.empty() ? rows : streams.front().first_row) - mask.first_row;
    if (mask.rows > 0) launch_batch();
  }
}

}  // namespace

void dropout(const at::Tensor& dropped, const at::Tensor& x, const DropoutParams& params) {
  if (dropped.numel() == 0) return;
  Dropout args{.mask = make_mask(x, dropped, params), .x = x.const_data_ptr(), .dropped = dropped.mutable_data_ptr()};
  for_each_batch(args.mask, x.size(0), params.streams, [&] {
    KernelLaunch("vlmtrain::dropout", {narrow_rows(x, args.mask)}, {narrow_rows(dropped, args.mask)})(
        launchers().dropout, args);
  });
}

void dropout_backward(const at::Tensor& sum, const at::Tensor& x, const DropoutParams& params) {
  if (x.numel() == 0) return;
  DropoutBackward args{.mask = make_mask(sum, x, params), .x = x.const_data_ptr(), .sum = sum.mutable_data_ptr()};
  for_each_batch(args.mask, sum.size(0), params.streams, [&] {
    const at::Tensor batch_sum = narrow_rows(sum, args.mask);
    KernelLaunch("vlmtrain::dropout_backward", {batch_sum, narrow_rows(x, args.mask)}, {batch_sum})(
        launchers().dropout_backward, args);
  });
}

}  // namespace vlmtrain::kernels
