#include "vlmtrain/nn/parameters.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cmath>

namespace vlmtrain::nn {

InitialValues InitialValues::for_fan_in(int64_t fan_in, double gain) {
  return {0, gain / std::sqrt(static_cast<double>(fan_in))};
}

at::Tensor ParameterStore::add(std::string name, Component component, at::IntArrayRef sizes, InitialValues initial) {
  parameters_.push_back({std::move(name), component, at::empty(sizes, options_).set_requires_grad(true), initial});
  return parameters_.back().tensor;
}

std::vector<at::Tensor> ParameterStore::tensors_from(size_t first) const {
  std::vector<at::Tensor> tensors;
  for (size_t i = first; i < parameters_.size(); ++i) tensors.push_back(parameters_[i].tensor);
  return tensors;
}

int64_t ParameterStore::total_elements() const {
  int64_t total = 0;
  for (const auto& parameter : parameters_) total += parameter.tensor.numel();
  return total;
}

ParameterScope ParameterScope::operator/(std::string_view name) const {
  return {*store_, component_, fmt::format("{}.{}", prefix_, name)};
}

at::Tensor ParameterScope::parameter(std::string_view name, at::IntArrayRef sizes, InitialValues initial) const {
  return store_->add(fmt::format("{}.{}", prefix_, name), component_, sizes, initial);
}

}  // namespace vlmtrain::nn
