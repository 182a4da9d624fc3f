#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::engine {

inline constexpr int64_t kMillion = 1'000'000;

/// A store of vectors p0, p1, … of these sizes, all ones.
class Vectors {
 public:
  explicit Vectors(const std::vector<int64_t>& sizes, at::ScalarType dtype = at::kFloat)
      : store_(at::TensorOptions(dtype)) {
    const nn::ParameterScope scope(store_, nn::Component::kLanguageModel, "model");
    for (const int64_t size : sizes) {
      const auto name = fmt::format("p{}", store_.all().size());
      scope.add_parameter(name, {size}, nn::InitialValues::zeros()).detach().fill_(1);
    }
  }

  const nn::ParameterStore& store() const { return store_; }
  const at::Tensor& operator[](size_t i) const { return store_.all().at(i).tensor; }

  /// Runs a backward pass, layer by layer.
  void backward() const {
    at::Tensor layer = at::ones({});
    for (const auto& parameter : store_.all()) layer = layer * parameter.tensor.mean();
    layer.backward();
  }

 private:
  nn::ParameterStore store_;
};

}  // namespace vlmtrain::engine
