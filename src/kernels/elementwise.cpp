#include "vlmtrain/kernels/elementwise.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/launch.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {

at::Tensor activate(const at::Tensor& x, ActivationFunction function) {
  at::Tensor value = at::empty_like(x);
  if (value.numel() == 0) return value;
  KernelLaunch("vlmtrain::activate", {x}, {value})(launchers().activate,
                                                   ActivationArgs{.element = get_element_type(x),
                                                                  .function = function,
                                                                  .count = x.numel(),
                                                                  .gradient = nullptr,
                                                                  .x = x.const_data_ptr(),
                                                                  .result = value.mutable_data_ptr()});
  return value;
}

at::Tensor activation_backward(const at::Tensor& gradient, const at::Tensor& x, ActivationFunction function) {
  at::Tensor dx = at::empty_like(x);
  if (dx.numel() == 0) return dx;
  KernelLaunch("vlmtrain::activation_backward", {gradient, x}, {dx})(
      launchers().activate, ActivationArgs{.element = get_element_type(x),
                                           .function = function,
                                           .count = x.numel(),
                                           .gradient = gradient.const_data_ptr(),
                                           .x = x.const_data_ptr(),
                                           .result = dx.mutable_data_ptr()});
  return dx;
}

at::Tensor gated_activation(const at::Tensor& x, GateActivation activation) {
  const int64_t features = x.size(-1) / 2;
  at::Tensor value = at::empty({x.size(0), features}, x.options());
  if (value.numel() == 0) return value;
  KernelLaunch("vlmtrain::gated_activation", {x}, {value})(
      launchers().gated_activation_forward, GatedActivationForwardArgs{.element = get_element_type(x),
                                                                       .activation = activation,
                                                                       .rows = x.size(0),
                                                                       .features = features,
                                                                       .x = x.const_data_ptr(),
                                                                       .value = value.mutable_data_ptr()});
  return value;
}

at::Tensor gated_activation_backward(const at::Tensor& gradient, const at::Tensor& x, GateActivation activation) {
  at::Tensor dx = at::empty_like(x);
  if (dx.numel() == 0) return dx;
  KernelLaunch("vlmtrain::gated_activation_backward", {gradient, x}, {dx})(
      launchers().gated_activation_backward, GatedActivationBackwardArgs{.element = get_element_type(x),
                                                                         .activation = activation,
                                                                         .rows = x.size(0),
                                                                         .features = x.size(-1) / 2,
                                                                         .gradient = gradient.const_data_ptr(),
                                                                         .x = x.const_data_ptr(),
                                                                         .dx = dx.mutable_data_ptr()});
  return dx;
}

namespace {

/// Returns the arguments of the masks for `single` [rows, columns] and `per_consumer` [consumers,
/// rows, columns]. Rows and streams are set by for_each_stream_batch().
DropoutMask make_dropout_mask(const at::Tensor& single, const at::Tensor& per_consumer, const DropoutParams& params) {
  VLMTRAIN_CHECK(single.dim() == 2 && single.is_contiguous() && per_consumer.is_contiguous() &&
                     per_consumer.sizes().slice(per_consumer.dim() - 2) == single.sizes(),
                 "dropout tensors of {} and {} elements do not match", single.numel(), per_consumer.numel());
  VLMTRAIN_CHECK(single.size(1) <= std::numeric_limits<uint32_t>::max(), "dropout does not support {} columns",
                 single.size(1));
  VLMTRAIN_CHECK(!params.streams.empty() && params.streams.front().first_row == 0,
                 "the first dropout stream must start at row 0");
  constexpr int kThresholdHalfBits = 16;  // each threshold is compared with 16 random bits
  const auto keep_threshold =
      static_cast<uint64_t>(std::llround(std::ldexp(1 - params.probability, 2 * kThresholdHalfBits)));
  return {.element = get_element_type(single),
          .columns = single.size(1),
          .consumer_stride = single.numel(),
          .num_consumers = static_cast<int>(per_consumer.numel() / single.numel()),
          .scale = static_cast<float>(1 / (1 - params.probability)),
          .keep_thresholds = {static_cast<uint32_t>(keep_threshold >> kThresholdHalfBits),
                              static_cast<uint32_t>(keep_threshold) & std::numeric_limits<uint16_t>::max()},
          .first_row = 0,
          .rows = 0,
          .streams = 0,
          .stream = {}};
}

at::Tensor narrow_to_mask_rows(const at::Tensor& tensor, const DropoutMask& mask) {
  return tensor.narrow(-2, mask.first_row, mask.rows);
}

/// Calls `launch_batch` for batches of at most kMaxDropoutStreamsPerLaunch streams, with the batch
/// in `mask`.
template <class LaunchBatch>
void for_each_stream_batch(DropoutMask& mask, int64_t rows, std::span<const DropoutStream> streams,
                           LaunchBatch launch_batch) {
  while (!streams.empty()) {
    const auto batch = streams.first(std::min<size_t>(kMaxDropoutStreamsPerLaunch, streams.size()));
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
  DropoutArgs args{
      .mask = make_dropout_mask(x, dropped, params), .x = x.const_data_ptr(), .dropped = dropped.mutable_data_ptr()};
  for_each_stream_batch(args.mask, x.size(0), params.streams, [&] {
    KernelLaunch("vlmtrain::dropout", {narrow_to_mask_rows(x, args.mask)}, {narrow_to_mask_rows(dropped, args.mask)})(
        launchers().dropout, args);
  });
}

void dropout_backward(const at::Tensor& sum, const at::Tensor& x, const DropoutParams& params) {
  if (x.numel() == 0) return;
  DropoutBackwardArgs args{
      .mask = make_dropout_mask(sum, x, params), .x = x.const_data_ptr(), .sum = sum.mutable_data_ptr()};
  for_each_stream_batch(args.mask, sum.size(0), params.streams, [&] {
    const at::Tensor batch_sum = narrow_to_mask_rows(sum, args.mask);
    KernelLaunch("vlmtrain::dropout_backward", {batch_sum, narrow_to_mask_rows(x, args.mask)}, {batch_sum})(
        launchers().dropout_backward, args);
  });
}

}  // namespace vlmtrain::kernels
