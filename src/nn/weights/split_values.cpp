#include "vlmtrain/nn/weights/split_values.h"

#include <ATen/ops/empty.h>

#include <limits>

namespace vlmtrain::nn {

namespace {

// Halves of a little-endian 32-bit number.
constexpr int64_t kLowerHalfIndex = 0;
constexpr int64_t kUpperHalfIndex = 1;

/// Returns one half of each element of 32 bits, as a view of type `dtype`.
at::Tensor view_halves(const at::Tensor& tensor, at::ScalarType dtype, int64_t index) {
  return tensor.view({-1}).view(dtype).view({-1, 2}).select(1, index);
}

/// Writes the bits of bf16 values to the upper halves of `to`, int32, and zeros to the lower ones.
void write_upper_halves(const at::Tensor& to, const at::Tensor& values) {
  view_halves(to, at::kShort, kLowerHalfIndex).zero_();
  view_halves(to, at::kShort, kUpperHalfIndex).copy_(values.view({-1}).view(at::kShort));
}

}  // namespace

void join_values_out(const at::Tensor& out, const at::Tensor& values, const at::Tensor& low_bits,
                     const at::Tensor& scratch) {
  write_upper_halves(out.view(at::kInt), values);
  out.view(at::kInt).add_(scratch.copy_(low_bits));
}

void split_values(const at::Tensor& from, const at::Tensor& values, const at::Tensor& low_bits,
                  const at::Tensor& scratch) {
  values.copy_(from);
  write_upper_halves(scratch, values);
  // A tie that is rounded down is 32,768 ulps from the bf16 number.
  low_bits.copy_(from.view(at::kInt).sub_(scratch).clamp_max_(std::numeric_limits<int16_t>::max()));
}

void round_values_stochastically(const at::Tensor& from, const at::Tensor& values, const at::Tensor& scratch,
                                 const at::Generator& generator) {
  constexpr int64_t kBf16Ulp = int64_t{1} << 16;  // distance of neighboring bf16 numbers in ulps of fp32
  // Random low bits may carry into the upper half, which is then the bf16 number.
  from.view(at::kInt).add_(scratch.random_(0, kBf16Ulp, generator));
  values.view({-1}).copy_(view_halves(from, at::kBFloat16, kUpperHalfIndex));
}

at::Tensor StoredTensor::read() const {
  if (!low_bits.defined()) return values;
  at::Tensor tensor = at::empty(values.sizes(), low_bits.options().dtype(at::kFloat));
  join_values_out(tensor, values.detach().to(low_bits.device()), low_bits,
                  at::empty(values.sizes(), low_bits.options().dtype(at::kInt)));
  return tensor;
}

at::Tensor StoredTensor::read_on_host() const {
  return StoredTensor{values.detach().cpu(), low_bits.defined() ? low_bits.cpu() : low_bits}.read();
}

void StoredTensor::write(const at::Tensor& tensor) const {
  if (!low_bits.defined()) {
    at::Tensor(values).copy_(tensor);
    return;
  }
  const at::Tensor copy = tensor.to(low_bits.device(), at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  const bool has_one_device = values.device() == low_bits.device();
  at::Tensor upper_half =
      has_one_device ? values : at::empty(values.sizes(), low_bits.options().dtype(values.scalar_type()));
  split_values(copy.view(values.sizes()), upper_half, low_bits,
               at::empty(values.sizes(), low_bits.options().dtype(at::kInt)));
  if (!has_one_device) at::Tensor(values).copy_(upper_half);
}

}  // namespace vlmtrain::nn
