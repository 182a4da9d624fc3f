#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::nn {

/// The part of a vision-language model that a parameter belongs to: what freezing and learning rates are chosen by.
enum class Component { kVisionTower, kProjector, kLanguageModel };

/// What a parameter's values are drawn from where a model starts at random: normal with this mean and deviation.
struct InitialValues {
  double mean = 0;
  double deviation = 0;

  static InitialValues zeros() { return {0, 0}; }
  static InitialValues ones() { return {1, 0}; }
  /// Keeps the variance of a product with `fan_in` inputs of variance 1; `gain` scales it.
  static InitialValues for_fan_in(int64_t fan_in, double gain = 1);
};

struct Parameter {
  std::string name;  ///< as in the checkpoint
  Component component;
  at::Tensor tensor;
  InitialValues initial;
};

/// The parameters of a model in order of construction. Modules hold the same tensors.
class ParameterStore {
 public:
  /// New parameters are uninitialised, of this device and dtype.
  explicit ParameterStore(at::TensorOptions options) : options_(options) {}

  at::Tensor add(std::string name, Component component, at::IntArrayRef sizes, InitialValues initial);

  const std::vector<Parameter>& all() const { return parameters_; }
  const at::TensorOptions& options() const { return options_; }
  /// The tensors added since `all()` had `first` entries: those of one block.
  std::vector<at::Tensor> tensors_from(size_t first) const;
  int64_t total_elements() const;

 private:
  at::TensorOptions options_;
  std::vector<Parameter> parameters_;
};

/// A place in the tree of parameter names, such as `model.text_model.layers.3`.
class ParameterScope {
 public:
  ParameterScope(ParameterStore& store, Component component, std::string prefix)
      : store_(&store), component_(component), prefix_(std::move(prefix)) {}

  ParameterScope operator/(std::string_view name) const;
  ParameterScope operator/(int64_t index) const { return *this / std::to_string(index); }
  at::Tensor parameter(std::string_view name, at::IntArrayRef sizes, InitialValues initial) const;
  ParameterStore& store() const { return *store_; }

 private:
  ParameterStore* store_;
  Component component_;
  std::string prefix_;
};

}  // namespace vlmtrain::nn
