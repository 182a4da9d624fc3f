#include "models/checkpoints/overflow.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/isfinite.h>
#include <fmt/ranges.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::models {

namespace {

/// Elements per task of at::parallel_for. Chosen without measurement.
constexpr int64_t kElementsPerTask = 1 << 18;

/// Returns true if a value has all bits of the mask `exponent` set, that is, if it is infinite or
/// NaN.
template <class Bits>
bool has_all_ones_exponent(const at::Tensor& values, Bits exponent) {
  const auto* const bits = static_cast<const Bits*>(values.const_data_ptr());
  std::atomic<bool> has_match = false;
  at::parallel_for(0, values.numel(), kElementsPerTask, [&](int64_t begin, int64_t end) {
    unsigned has_task_match = 0;
    for (int64_t i = begin; i < end; ++i) has_task_match |= static_cast<unsigned>((bits[i] & exponent) == exponent);
    if (has_task_match != 0) has_match = true;
  });
  return has_match;
}

bool has_non_finite_values(const at::Tensor& values) {
  const bool is_dense_cpu = values.is_cpu() && values.is_contiguous();
  if (is_dense_cpu && values.scalar_type() == at::kBFloat16) return has_all_ones_exponent<uint16_t>(values, 0x7F80);
  if (is_dense_cpu && values.scalar_type() == at::kHalf) return has_all_ones_exponent<uint16_t>(values, 0x7C00);
  if (is_dense_cpu && values.scalar_type() == at::kFloat) return has_all_ones_exponent<uint32_t>(values, 0x7F800000);
  return !at::isfinite(values).all().item<bool>();
}

/// Returns "1e+05 at [0, 3]" for the first element selected by `mask`.
std::string describe_first_masked_value(const at::Tensor& values, const at::Tensor& mask) {
  const auto position = mask.flatten().to(at::kByte).argmax().item<int64_t>();
  std::vector<int64_t> index(static_cast<size_t>(values.dim()));
  int64_t remaining = position;
  for (size_t axis = index.size(); axis > 0; --axis) {
    const int64_t size = values.size(static_cast<int64_t>(axis) - 1);
    index[axis - 1] = remaining % size;
    remaining /= size;
  }
  return fmt::format("{:.6g} at [{}]", values.flatten()[position].item<double>(), fmt::join(index, ", "));
}

double get_max_finite_value(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return 65504;
    case at::kBFloat16:
      return 3.3895313892515355e38;
    case at::kFloat:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::infinity();
  }
}

bool has_wider_range(at::ScalarType from, at::ScalarType to) {
  return get_max_finite_value(from) > get_max_finite_value(to);
}

/// Returns a mask of the finite values that round to infinity in `dtype`: those that exceed its
/// largest number by half a unit in the last place or more.
at::Tensor make_overflow_mask(const at::Tensor& values, at::ScalarType dtype) {
  return at::isfinite(values).logical_and(at::isfinite(values.to(dtype)).logical_not());
}

}  // namespace

std::string describe_first_non_finite_value(const at::Tensor& values) {
  if (!c10::isFloatingType(values.scalar_type()) || values.numel() == 0 || values.is_meta()) return "";
  if (!has_non_finite_values(values)) return "";
  return describe_first_masked_value(values, at::isfinite(values).logical_not());
}

bool overflows(const at::Tensor& values, at::ScalarType dtype) {
  if (!has_wider_range(values.scalar_type(), dtype) || values.numel() == 0 || values.is_meta()) return false;
  if (dtype == at::kHalf) {
    // Compares in place, because a converted copy would double the memory. 65520 is the least
    // number that float16 rounds to infinity (65504 plus half a unit in the last place).
    constexpr double kHalfOverflowThreshold = 65520;
    const auto [smallest, largest] = at::aminmax(values);
    const double low = smallest.item<double>(), high = largest.item<double>();
    if (low > -kHalfOverflowThreshold && high < kHalfOverflowThreshold) return false;
  }
  return make_overflow_mask(values, dtype).any().item<bool>();
}

std::string describe_overflow(std::string_view name, const at::Tensor& values, at::ScalarType dtype) {
  if (!overflows(values, dtype)) return "";
  return fmt::format("{} has {}, which is infinite in {}", name,
                     describe_first_masked_value(values, make_overflow_mask(values, dtype)),
                     io::to_safetensors_dtype(dtype));
}

}  // namespace vlmtrain::models
