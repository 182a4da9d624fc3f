#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::parity {

/// ‖a − b‖ / ‖b‖, in float64; 0 where both are 0.
inline double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor reference = b.to(at::kDouble);
  return ((a.to(at::kDouble) - reference).norm() / reference.norm().clamp_min(1e-12)).item<double>();
}

/// max |a − b| / max |b|, in float64.
inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor reference = b.to(at::kDouble);
  return ((a.to(at::kDouble) - reference).abs().max() / reference.abs().max()).item<double>();
}

/// A key's bias in the vision tower, whose attention knows no positions. It adds the same number to all scores of a
/// query, which softmax does not see: its true gradient is zero, and what float32 computes for it is rounding noise.
inline bool has_zero_true_gradient(std::string_view parameter) {
  const bool is_key_bias =
      parameter.ends_with("self_attn.k_proj.bias") || parameter.ends_with(".attention.k_proj.bias");
  return parameter.find("vision") != std::string_view::npos && is_key_bias;
}

/// Of the bias of a vision tower's fused query, key and value (nanoVLM) the two parts that the above does not hold for;
/// any other tensor as it is.
inline at::Tensor drop_key_bias(std::string_view parameter, const at::Tensor& tensor) {
  if (parameter.find("vision") == std::string_view::npos || !parameter.ends_with("qkv_proj.bias")) return tensor;
  const auto parts = tensor.chunk(3);
  return at::cat({parts[0], parts[2]});
}

/// Holds measured differences against their bounds, and prints the worst of each kind at the end of the test.
class Deviations {
 public:
  void expect_at_most(double bound, double measured, const std::string& kind, const std::string& location) {
    EXPECT_LE(measured, bound) << kind << ": " << location;
    update_worst({measured, bound, location}, kind);
  }

  /// For the report alone, GoogleTest's included, of which scripts/families_table.py reads it.
  void record(double measured, const std::string& kind, const std::string& location) {
    update_worst({measured, std::nullopt, location}, kind);
  }

  void report() const {
    for (const auto& [kind, worst] : worst_) {
      if (worst.bound) {
        std::cout << fmt::format("  {}: {:.1e} (at most {:.0e}) {}\n", kind, worst.measured, *worst.bound,
                                 worst.location);
      } else {
        std::cout << fmt::format("  {}: {:.1e} {}\n", kind, worst.measured, worst.location);
        testing::Test::RecordProperty(kind, fmt::format("{:.1e}", worst.measured));
      }
    }
  }

 private:
  struct Worst {
    double measured;
    std::optional<double> bound;  ///< nothing: none is asked for
    std::string location;
  };

  void update_worst(const Worst& deviation, const std::string& kind) {
    const auto [worst, is_first] = worst_.try_emplace(kind, deviation);
    if (!is_first && !(deviation.measured <= worst->second.measured)) worst->second = deviation;
  }

  std::map<std::string, Worst> worst_;
};

}  // namespace vlmtrain::parity
