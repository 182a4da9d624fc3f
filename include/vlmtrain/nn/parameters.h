#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/nn/component.h"
#include "vlmtrain/nn/linear_weight.h"
#include "vlmtrain/nn/lora_settings.h"
#include "vlmtrain/nn/quantization.h"

namespace vlmtrain::nn {

/// What a parameter's values are drawn from where a model starts at random: normal with this mean and deviation, or
/// uniform in mean ± deviation.
struct InitialValues {
  double mean = 0;
  double deviation = 0;
  bool is_uniform = false;

  static InitialValues zeros() { return {0, 0}; }
  static InitialValues ones() { return {1, 0}; }
  /// Keeps the variance of a product with `fan_in` inputs of variance 1; `gain` scales it.
  static InitialValues for_fan_in(int64_t fan_in, double gain = 1);
  static InitialValues uniform(double bound) { return {0, bound, true}; }
};

struct Parameter {
  std::string name;  ///< as in the checkpoint
  Component component;
  at::Tensor tensor;  ///< of a quantised weight its packed values, which mean nothing by themselves
  InitialValues initial;
  bool is_adapter = false;                               ///< LoRA's, beside the checkpoint's own
  bool in_modules_to_save = false;                       ///< the checkpoint's own, trained and kept with an adapter
  std::shared_ptr<QuantizedWeight> quantized = nullptr;  ///< of a weight that is held quantised
  bool is_embedding = false;                             ///< a table of which rows are taken
  bool is_in_block = false;                              ///< one of a tower's, which runs block after block

  bool goes_with_adapter() const { return is_adapter || in_modules_to_save; }
  /// As the checkpoint has it.
  at::IntArrayRef sizes() const { return quantized ? quantized->sizes() : tensor.sizes(); }
  int64_t elements() const { return c10::multiply_integers(sizes()); }
  /// Without gradients: the tensor itself, or a new one with the quantised values.
  at::Tensor values() const { return quantized ? quantized->dequantize() : tensor.detach(); }
  /// Copies values of these sizes, converted or quantised.
  void set_values(const at::Tensor& values) const;
};

/// What the parameters of a model are, beside its configuration.
struct ParameterSettings {
  at::TensorOptions options;  ///< device and dtype
  std::optional<LoraSettings> lora = std::nullopt;
  Quantization quantization = Quantization::kNone;  ///< of the weights of all Linears; with LoRA only
};

/// A Linear of a model, by its place in the tree of names.
struct LinearPlace {
  std::string path;
  Component component;
  bool has_adapter;
};

/// The parameters of a model in order of construction. Modules hold the same tensors.
class ParameterStore {
 public:
  /// New parameters are uninitialised. They require gradients; with LoRA only the adapters' and those
  /// of modules_to_save do.
  /// Throws UserError (kUsage) for a regular expression in target_modules that is none.
  explicit ParameterStore(ParameterSettings settings);
  explicit ParameterStore(at::TensorOptions options) : ParameterStore(ParameterSettings{options}) {}

  at::Tensor add(std::string name, Component component, at::IntArrayRef sizes, InitialValues initial,
                 bool is_adapter = false);

  at::Tensor add_embedding(std::string name, Component component, at::IntArrayRef sizes, InitialValues initial);

  /// The weight of a Linear, quantised if the settings say so.
  LinearWeight add_linear_weight(std::string name, Component component, at::IntArrayRef sizes, InitialValues initial);

  /// Notes a Linear. Returns the settings of its adapter if it is to have one.
  const LoraSettings* add_linear(const std::string& path, Component component);

  const std::vector<Parameter>& all() const { return parameters_; }
  const std::vector<LinearPlace>& linears() const { return linears_; }
  /// The entries of target_modules that no adapter follows from.
  std::vector<std::string> targets_without_linear() const;
  /// The entries of modules_to_save that no trained parameter follows from.
  std::vector<std::string> saved_modules_without_parameter() const;
  const std::optional<LoraSettings>& lora() const { return settings_.lora; }
  Quantization quantization() const { return settings_.quantization; }
  const at::TensorOptions& options() const { return settings_.options; }
  /// What was added since all() had `first` entries is one block. Returns its tensors.
  std::vector<at::Tensor> close_block(size_t first);

  /// Called just before a forward pass reads parameters [first, end) of all(): those of a block before it runs, all
  /// others before the first of them is read. Where weights travel between ranks, that is when they have to be there.
  using BeforeUse = std::function<void(size_t first, size_t end)>;
  void set_before_use(BeforeUse before_use) { before_use_ = std::move(before_use); }
  void use_block(size_t first, size_t end) const {
    if (before_use_) before_use_(first, end);
  }
  void use_outside_of_blocks() const;

  int64_t total_elements() const;

 private:
  bool takes(const LoraTarget& target, const LinearPlace& linear) const;

  ParameterSettings settings_;
  std::optional<Quantizer> quantizer_;
  std::vector<LoraTarget> targets_;
  std::vector<Parameter> parameters_;
  std::vector<LinearPlace> linears_;
  BeforeUse before_use_;
};

/// A place in the tree of parameter names, such as `model.text_model.layers.3`.
class ParameterScope {
 public:
  ParameterScope(ParameterStore& store, Component component, std::string prefix)
      : store_(&store), component_(component), prefix_(std::move(prefix)) {}

  ParameterScope operator/(std::string_view name) const;
  ParameterScope operator/(int64_t index) const { return *this / std::to_string(index); }
  /// The same place, of another component.
  ParameterScope as(Component component) const { return {*store_, component, prefix_}; }
  at::Tensor parameter(std::string_view name, at::IntArrayRef sizes, InitialValues initial) const;
  at::Tensor embedding(std::string_view name, at::IntArrayRef sizes, InitialValues initial) const;
  /// The weight of the Linear that is here.
  LinearWeight linear_weight(at::IntArrayRef sizes, InitialValues initial) const;
  at::Tensor adapter_parameter(std::string_view name, at::IntArrayRef sizes, InitialValues initial) const;
  /// Notes that a Linear is here; see ParameterStore::add_linear.
  const LoraSettings* linear_here() const { return store_->add_linear(prefix_, component_); }
  ParameterStore& store() const { return *store_; }
  const std::string& path() const { return prefix_; }

 private:
  ParameterStore* store_;
  Component component_;
  std::string prefix_;
};

}  // namespace vlmtrain::nn
