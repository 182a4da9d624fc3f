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

at::Tensor midpoints(const at::Tensor& ascending) {
  const int64_t num_gaps = ascending.size(0) - 1;
  return (ascending.narrow(0, 0, num_gaps) + ascending.narrow(0, 1, num_gaps)) / 2;
}

at::Tensor make_nf4_codebook() {
  return at::tensor({-1.0F, -0.6961928009986877F, -0.5250730514526367F, -0.39491748809814453F, -0.28444138169288635F,
                     -0.18477343022823334F, -0.09105003625154495F, 0.0F, 0.07958029955625534F, 0.16093020141124725F,
                     0.24611230194568634F, 0.33791524171829224F, 0.44070982933044434F, 0.5626170039176941F,
                     0.7229568362236023F, 1.0F});
}

namespace {

/// What at::linspace gives where the processor multiplies and adds with one rounding; its own result depends on that.
at::Tensor linspace_fma(float first, float last, int64_t count) {
  const float step = (last - first) / static_cast<float>(count - 1);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(i < count / 2 ? std::fma(step, static_cast<float>(i), first)
                                   : std::fma(-step, static_cast<float>(count - 1 - i), last));
  }
  return at::tensor(values);
}

}  // namespace

at::Tensor make_dynamic_codebook(Signedness signedness) {
  constexpr int kExponents = 7;
  std::vector<at::Tensor> parts{at::tensor({0.0F, 1.0F})};
  for (int i = 0; i < kExponents; ++i) {
    const int64_t count = signedness == Signedness::kSigned ? int64_t{1} << i : int64_t{2} << i;
    const at::Tensor fractions = midpoints(linspace_fma(0.1F, 1.0F, count + 1));
    const at::Tensor positive = std::pow(10.0, i - (kExponents - 1)) * fractions;
    parts.push_back(positive);
    if (signedness == Signedness::kSigned) parts.push_back(-positive);
  }
  return std::get<0>(at::cat(parts).sort());
}

QuantizedBlocks quantize_blocks(const at::Tensor& values, int64_t block_size, const at::Tensor& codebook) {
  constexpr double kMinAbsmax = 1e-38;  // of what is divided by: a block of zeros stays one
  const at::Tensor bounds = midpoints(codebook);
  const int64_t whole = values.size(0) / block_size * block_size;
  const at::Tensor blocks = values.narrow(0, 0, whole).view({whole / block_size, block_size});
  at::Tensor absmax = at::amax(blocks.abs(), {1});
  at::Tensor scaled = (blocks * (1.0 / absmax.clamp_min(kMinAbsmax)).unsqueeze(1)).view(-1);
  if (whole < values.size(0)) {
    const at::Tensor tail = values.narrow(0, whole, values.size(0) - whole);
    const at::Tensor largest = at::amax(tail.abs(), {0}, /*keepdim=*/true).clamp_min(kMinAbsmax);
    absmax = at::cat({absmax, largest});
    scaled = at::cat({scaled, tail / largest});
  }
  return {at::bucketize(scaled.clamp_(-1, 1), bounds, /*out_int32=*/true).to(at::kByte), absmax};
}

}  // namespace vlmtrain::nn
