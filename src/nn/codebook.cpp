#include "vlmtrain/nn/codebook.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <vector>

namespace vlmtrain::nn {

at::Tensor middles(const at::Tensor& ascending) {
  const int64_t gaps = ascending.size(0) - 1;
  return (ascending.narrow(0, 0, gaps) + ascending.narrow(0, 1, gaps)) / 2;
}

at::Tensor nf4_codebook() {
  return at::tensor({-1.0F, -0.6961928009986877F, -0.5250730514526367F, -0.39491748809814453F, -0.28444138169288635F,
                     -0.18477343022823334F, -0.09105003625154495F, 0.0F, 0.07958029955625534F, 0.16093020141124725F,
                     0.24611230194568634F, 0.33791524171829224F, 0.44070982933044434F, 0.5626170039176941F,
                     0.7229568362236023F, 1.0F});
}

namespace {

/// What at::linspace gives where the processor multiplies and adds with one rounding; its own result depends on that.
at::Tensor evenly_spaced(float first, float last, int64_t count) {
  const float step = (last - first) / static_cast<float>(count - 1);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(i < count / 2 ? std::fma(step, static_cast<float>(i), first)
                                   : std::fma(-step, static_cast<float>(count - 1 - i), last));
  }
  return at::tensor(values);
}

}  // namespace

at::Tensor dynamic_codebook(Signs signs) {
  constexpr int kExponents = 7;
  std::vector<at::Tensor> parts{at::tensor({0.0F, 1.0F})};
  for (int i = 0; i < kExponents; ++i) {
    const int64_t count = signs == Signs::kBoth ? int64_t{1} << i : int64_t{2} << i;
    const at::Tensor fractions = middles(evenly_spaced(0.1F, 1.0F, count + 1));
    const at::Tensor positive = std::pow(10.0, i - (kExponents - 1)) * fractions;
    parts.push_back(positive);
    if (signs == Signs::kBoth) parts.push_back(-positive);
  }
  return std::get<0>(at::cat(parts).sort());
}

QuantizedBlocks quantize_blocks(const at::Tensor& values, int64_t block_size, const at::Tensor& codebook) {
  constexpr double kSmallest = 1e-38;  // of what is divided by: a block of zeros stays one
  const at::Tensor bounds = middles(codebook);
  const int64_t whole = values.size(0) / block_size * block_size;
  const at::Tensor blocks = values.narrow(0, 0, whole).view({whole / block_size, block_size});
  at::Tensor absmax = at::amax(blocks.abs(), {1});
  at::Tensor scaled = (blocks * (1.0 / absmax.clamp_min(kSmallest)).unsqueeze(1)).view(-1);
  if (whole < values.size(0)) {
    const at::Tensor rest = values.narrow(0, whole, values.size(0) - whole);
    const at::Tensor largest = at::amax(rest.abs(), {0}, /*keepdim=*/true).clamp_min(kSmallest);
    absmax = at::cat({absmax, largest});
    scaled = at::cat({scaled, rest / largest});
  }
  return {at::bucketize(scaled.clamp_(-1, 1), bounds, /*out_int32=*/true).to(at::kByte), absmax};
}

}  // namespace vlmtrain::nn
