#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::parity {

// Same rule as reference/library/thin.py.
constexpr int64_t kMaxFullElements = 1024;  ///< smaller tensors are stored in full
constexpr int64_t kStride = 13;             ///< every 13th element of a larger tensor is stored
constexpr int64_t kProjections = 8;

/// Returns signs of element `index`: bit j for projection j. The hash is MurmurHash3's finalizer.
inline uint32_t projection_signs(uint32_t index) {
  uint32_t value = index * 0x9E3779B1U;
  value = (value ^ (value >> 15)) * 0x85EBCA77U;
  value = (value ^ (value >> 13)) * 0xC2B2AE3DU;
  return value ^ (value >> 16);
}

/// Returns the projections of `tensor`, float64 [kProjections]: sums of all elements, each with its
/// sign.
inline at::Tensor compute_projections(const at::Tensor& tensor) {
  const at::Tensor flat_values = tensor.detach().to(at::kDouble).flatten().contiguous();
  const double* const values = flat_values.const_data_ptr<double>();
  at::Tensor projections = at::zeros({kProjections}, at::kDouble);
  double* const projection_data = projections.mutable_data_ptr<double>();
  for (int64_t i = 0; i < flat_values.numel(); ++i) {
    const uint32_t signs = projection_signs(static_cast<uint32_t>(i));
    for (int64_t j = 0; j < kProjections; ++j) projection_data[j] += ((signs >> j) & 1U) != 0 ? -values[i] : values[i];
  }
  return projections;
}

/// Reference tensor with some stored elements and projections of all elements.
class StoredTensor {
 public:
  StoredTensor(std::string name, at::Tensor values, at::Tensor projections)
      : name_(std::move(name)), values_(std::move(values)), projections_(std::move(projections)) {}

  /// Returns the stored elements, one-dimensional.
  const at::Tensor& values() const { return values_; }

  /// Returns the elements of `tensor` that the file stores of the reference. Throws
  /// std::runtime_error if the sizes differ.
  at::Tensor select_stored(const at::Tensor& tensor) const {
    const int64_t stride = tensor.numel() > kMaxFullElements ? kStride : 1;
    at::Tensor selected = tensor.flatten().slice(0, 0, tensor.numel(), stride);
    if (selected.numel() != values_.numel()) {
      throw std::runtime_error(fmt::format("{}: the file stores {} elements, a tensor of {} elements has {} of them",
                                           name_, values_.numel(), tensor.numel(), selected.numel()));
    }
    return selected;
  }

  /// Returns an estimate of ‖whole − reference‖, over all elements. A difference in a single
  /// element is exact.
  double estimate_difference_norm(const at::Tensor& tensor) const {
    const at::Tensor difference = compute_projections(tensor) - projections_.to(at::kDouble);
    return difference.norm().item<double>() / std::sqrt(static_cast<double>(kProjections));
  }

 private:
  std::string name_;
  at::Tensor values_;
  at::Tensor projections_;
};

/// File expected.safetensors. `stored` reads gradients, parameters and logits, `tensor` all others.
class ReferenceFile {
 public:
  explicit ReferenceFile(const std::filesystem::path& path) : file_(path) {
    for (const std::string& name : file_.names()) {
      if (is_sampled(name)) sampled_names_.push_back(name);
    }
    std::ranges::sort(sampled_names_);
  }

  bool contains(const std::string& name) const { return file_.contains(name); }

  /// Returns a tensor. REQUIRES: it is stored in full.
  at::Tensor tensor(const std::string& name) const {
    if (is_sampled(name)) throw std::logic_error(name + " may be stored in part: read it by ReferenceFile::stored");
    return file_.tensor(name);
  }

  StoredTensor stored(const std::string& name) const {
    const auto index = std::ranges::lower_bound(sampled_names_, name) - sampled_names_.begin();
    return {name, file_.tensor(name).flatten(), file_.tensor("projections")[index]};
  }

 private:
  static bool is_sampled(const std::string& name) {
    return name.starts_with("gradient.") || name.starts_with("parameter.") || name.ends_with(".logits");
  }

  io::SafetensorsFile file_;
  std::vector<std::string> sampled_names_;  ///< sorted; the order of the rows of "projections"
};

}  // namespace vlmtrain::parity
