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

/// Returns ‖a − b‖ / ‖b‖, computed in float64; 0 if both are 0.
inline double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor reference = b.to(at::kDouble);
  return ((a.to(at::kDouble) - reference).norm() / reference.norm().clamp_min(1e-12)).item<double>();
}

/// Returns max |a − b| / max |b|, computed in float64.
inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor reference = b.to(at::kDouble);
  return ((a.to(at::kDouble) - reference).abs().max() / reference.abs().max()).item<double>();
}

/// Returns true for a key bias of a vision tower without rotary positions. It adds the same number
/// to all scores of a query, which softmax ignores: the true gradient is zero, and float32 computes
/// rounding errors.
inline bool has_zero_true_gradient(std::string_view parameter) {
  const bool is_key_bias =
      parameter.ends_with("self_attn.k_proj.bias") || parameter.ends_with(".attention.k_proj.bias");
  return parameter.find("vision") != std::string_view::npos && is_key_bias;
}

/// Returns the query and value parts of a fused query, key and value bias of a vision tower
/// (nanoVLM), because of has_zero_true_gradient(); returns other tensors unchanged.
inline at::Tensor drop_key_bias(std::string_view parameter, const at::Tensor& tensor) {
  if (parameter.find("vision") == std::string_view::npos || !parameter.ends_with("qkv_proj.bias")) return tensor;
  const auto parts = tensor.chunk(3);
  return at::cat({parts[0], parts[2]});
}

/// Comparison of measured differences with their bounds. Prints the worst of each kind at the end
/// of the test.
class Deviations {
 public:
  void expect_at_most(double bound, double measured, const std::string& kind, const std::string& location) {
    EXPECT_LE(measured, bound) << kind << ": " << location;
    update_worst({measured, bound, location}, kind);
  }

  /// Adds a difference to the report alone, GoogleTest's included, which scripts/families_table.py
  /// reads.
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
    std::optional<double> bound;  ///< nothing: not bounded
    std::string location;
  };

  void update_worst(const Worst& deviation, const std::string& kind) {
    const auto [worst, is_first] = worst_.try_emplace(kind, deviation);
    if (!is_first && !(deviation.measured <= worst->second.measured)) worst->second = deviation;
  }

  std::map<std::string, Worst> worst_;
};

}  // namespace vlmtrain::parity
