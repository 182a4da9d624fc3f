#pragma once

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/randn.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "engine/bucketed_optimizer.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

/// A store with a random matrix and vector in each component; with `large`, also matrices whose
/// moments can be compressed, and weights of Linears.
class Parameters {
 public:
  explicit Parameters(at::ScalarType dtype = at::kFloat, bool large = false) : store_(at::TensorOptions(dtype)) {
    for (const auto& [component, name] :
         {std::pair{nn::Component::kVisionTower, "vision"}, std::pair{nn::Component::kProjector, "projector"},
          std::pair{nn::Component::kLanguageModel, "language"}}) {
      const nn::ParameterScope scope(store_, component, name);
      scope.add_parameter("matrix", {3, 5}, nn::InitialValues::zeros());
      scope.add_parameter("vector", {7}, nn::InitialValues::zeros());
      if (!large) continue;
      scope.add_parameter("large", {70, 70}, nn::InitialValues::zeros());  // not a multiple of 256
      scope.add_parameter("larger", {64, 128}, nn::InitialValues::zeros());
      for (const auto& [linear, rows, columns] : {std::tuple{"tall_linear", 24, 10}, {"wide_linear", 10, 24}})
        (scope / linear).add_linear_weight({rows, columns}, nn::InitialValues::zeros());
    }
    for (const auto& parameter : store_.all()) parameter.tensor.detach().copy_(at::randn(parameter.tensor.sizes()));
  }

  nn::ParameterStore& store() { return store_; }
  at::Tensor tensor(const std::string& name) const {
    for (const auto& parameter : store_.all()) {
      if (parameter.name == name) return parameter.tensor;
    }
    throw InternalError(name);
  }
  void copy_from(const Parameters& other) {
    for (const auto& parameter : store_.all()) parameter.tensor.detach().copy_(other.tensor(parameter.name));
  }

 private:
  nn::ParameterStore store_;
};

/// Adds `gradient` to that of the parameter by the backward pass of a linear loss.
inline void add_gradient(const at::Tensor& parameter, const at::Tensor& gradient) {
  (parameter * gradient.to(parameter.scalar_type())).sum().backward();
}

/// Adds random gradients, equal for every optimizer in the same step.
inline std::map<std::string, at::Tensor> random_gradients(Parameters& parameters, uint64_t step, double scale) {
  at::manual_seed(100 + step);
  std::map<std::string, at::Tensor> gradients;
  for (const auto& parameter : parameters.store().all())
    gradients[parameter.name] = at::randn(parameter.tensor.sizes()) * scale;
  return gradients;
}

inline void add_gradients(Parameters& parameters, const std::map<std::string, at::Tensor>& gradients) {
  for (const auto& [name, gradient] : gradients) add_gradient(parameters.tensor(name), gradient);
}

}  // namespace vlmtrain::engine
