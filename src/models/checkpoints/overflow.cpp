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

#include "vlmtrain/io/dtype_name.h"

namespace vlmtrain::models {

namespace {

/// Elements that a thread checks at a time; enough that starting it does not count.
constexpr int64_t kGrain = 1 << 18;

/// Whether a number has all exponent bits set: infinity or not a number.
template <class Bits>
bool any_exponent_is_full(const at::Tensor& values, Bits exponent) {
  const auto* const bits = static_cast<const Bits*>(values.const_data_ptr());
  std::atomic<bool> found = false;
  at::parallel_for(0, values.numel(), kGrain, [&](int64_t begin, int64_t end) {
    unsigned full = 0;
    for (int64_t i = begin; i < end; ++i) full |= static_cast<unsigned>((bits[i] & exponent) == exponent);
    if (full != 0) found = true;
  });
  return found;
}

bool has_non_finite(const at::Tensor& values) {
  const bool is_plain = values.is_cpu() && values.is_contiguous();
  if (is_plain && values.scalar_type() == at::kBFloat16) return any_exponent_is_full<uint16_t>(values, 0x7F80);
  if (is_plain && values.scalar_type() == at::kHalf) return any_exponent_is_full<uint16_t>(values, 0x7C00);
  if (is_plain && values.scalar_type() == at::kFloat) return any_exponent_is_full<uint32_t>(values, 0x7F800000);
  return !at::isfinite(values).all().item<bool>();
}

/// "1e+05 at [0, 3]" of the first element that `chosen` holds.
std::string first_value(const at::Tensor& values, const at::Tensor& chosen) {
  const auto place = chosen.flatten().to(at::kByte).argmax().item<int64_t>();
  std::vector<int64_t> index(static_cast<size_t>(values.dim()));
  int64_t rest = place;
  for (size_t axis = index.size(); axis > 0; --axis) {
    const int64_t size = values.size(static_cast<int64_t>(axis) - 1);
    index[axis - 1] = rest % size;
    rest /= size;
  }
  return fmt::format("{:.6g} at [{}]", values.flatten()[place].item<double>(), fmt::join(index, ", "));
}

double largest_number(at::ScalarType dtype) {
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

bool is_wider(at::ScalarType from, at::ScalarType to) {
  return largest_number(from) > largest_number(to);
}

/// What rounds to infinity: from half a unit in the last place above the largest number on.
at::Tensor becomes_infinite(const at::Tensor& values, at::ScalarType dtype) {
  return at::isfinite(values).logical_and(at::isfinite(values.to(dtype)).logical_not());
}

}  // namespace

std::string find_non_finite(const at::Tensor& values) {
  if (!c10::isFloatingType(values.scalar_type()) || values.numel() == 0 || values.is_meta()) return "";
  if (!has_non_finite(values)) return "";
  return first_value(values, at::isfinite(values).logical_not());
}

bool overflows(const at::Tensor& values, at::ScalarType dtype) {
  if (!is_wider(values.scalar_type(), dtype) || values.numel() == 0 || values.is_meta()) return false;
  if (dtype == at::kHalf) {
    // Without a copy of the values. From here on numbers round to infinity.
    constexpr double kFirstInfinite = 65520;
    const auto [least, most] = at::aminmax(values);
    const double low = least.item<double>(), high = most.item<double>();
    if (low > -kFirstInfinite && high < kFirstInfinite) return false;
  }
  return becomes_infinite(values, dtype).any().item<bool>();
}

std::string overflow_problem(std::string_view name, const at::Tensor& values, at::ScalarType dtype) {
  if (!overflows(values, dtype)) return "";
  return fmt::format("{} has {}, which is infinite in {}", name, first_value(values, becomes_infinite(values, dtype)),
                     io::dtype_name(dtype));
}

}  // namespace vlmtrain::models
