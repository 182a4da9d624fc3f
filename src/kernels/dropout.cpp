#include "vlmtrain/kernels/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "kernels/launch.h"
#include "kernels/self_test.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {

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

namespace reference {

std::array<uint32_t, 4> philox(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter) {
  const auto multiply_wide = [](uint64_t a, uint64_t b) {
    return std::pair(static_cast<uint32_t>(a * b >> 32), static_cast<uint32_t>(a * b));
  };
  // The paper's names and constants (Salmon et al. 2011).
  auto [l0, r0, l1, r1] = counter;
  for (int round = 0; round < 10; ++round) {
    const auto [high0, low0] = multiply_wide(0xD2511F53U, l0);
    const auto [high1, low1] = multiply_wide(0xCD9E8D57U, l1);
    l0 = high1 ^ r0 ^ key[0];
    r0 = low1;
    l1 = high0 ^ r1 ^ key[1];
    r1 = low0;
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return {l0, r0, l1, r1};
}

at::Tensor make_dropout_masks(const at::Tensor& x, int64_t num_consumers, const DropoutParams& params) {
  constexpr int64_t kValuesPerPhiloxCall = 8;  // 16-bit numbers in the 128 bits of one Philox call
  const double keep_threshold = (1 - params.probability) * 0x1p32;
  const at::Tensor masks = at::empty({num_consumers, x.size(0), x.size(1)}, at::kDouble);
  auto* mask = masks.mutable_data_ptr<double>();
  for (int64_t consumer = 0; consumer < num_consumers; ++consumer) {
    for (int64_t row = 0; row < x.size(0); ++row) {
      const auto next_stream = std::ranges::upper_bound(params.streams, row, {}, &DropoutStream::first_row);
      const DropoutStream& stream = *std::prev(next_stream);
      const uint64_t key = stream.key;
      const auto stream_row = static_cast<uint64_t>(row - stream.first_row);
      for (int64_t column = 0; column < x.size(1); ++column) {
        const auto draw_16_bits = [&](uint32_t is_lower) {
          const auto words = philox(
              {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)},
              {static_cast<uint32_t>(column / kValuesPerPhiloxCall), static_cast<uint32_t>(consumer) | is_lower << 31,
               static_cast<uint32_t>(stream_row), static_cast<uint32_t>(stream_row >> 32)});
          const auto index = static_cast<size_t>(column % kValuesPerPhiloxCall);
          return words.at(index / 2) >> (index % 2 * 16) & 0xffffU;
        };
        // Always draws all 32 bits; the kernel draws the lower 16 only if the upper 16 do not
        // decide.
        *mask++ = draw_16_bits(0) * 0x1p16 + draw_16_bits(1) < keep_threshold ? 1 : 0;
      }
    }
  }
  return masks.to(x.device());
}

at::Tensor dropout(const at::Tensor& x, const at::Tensor& masks, double probability) {
  return (x.to(at::kDouble) * masks / (1 - probability)).to(x.scalar_type());
}

at::Tensor dropout_backward(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& masks, double probability) {
  return (sum.to(at::kDouble) + (x.to(at::kDouble) * masks).sum(0) / (1 - probability)).to(x.scalar_type());
}

}  // namespace reference

std::vector<ComparedTensors> test_dropout(RandomInputs& inputs, const KernelTestSizes& sizes) {
  constexpr int64_t kNumConsumers = 3;
  constexpr DropoutStream kStreams[] = {{.key = 1, .first_row = 0}, {.key = 2, .first_row = 2}};
  const DropoutParams params{.probability = 0.25, .streams = kStreams};
  std::vector<ComparedTensors> compared_tensors;
  for (const int64_t columns : sizes.columns) {
    const at::Tensor x = inputs.make_tensor({sizes.rows, columns}),
                     gradients = inputs.make_tensor({kNumConsumers, sizes.rows, columns});
    const at::Tensor masks = reference::make_dropout_masks(x, kNumConsumers, params),
                     actual = at::empty_like(gradients);
    dropout(actual, x, params);
    compared_tensors.push_back({actual, reference::dropout(x, masks, params.probability)});
    const at::Tensor expected = reference::dropout_backward(x, gradients, masks, params.probability);
    dropout_backward(x, gradients, params);
    compared_tensors.push_back({x, expected});
  }
  return compared_tensors;
}

}  // namespace vlmtrain::kernels
