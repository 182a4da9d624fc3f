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

#include "vlmtrain/nn/block_weights.h"
#include "vlmtrain/nn/component.h"
#include "vlmtrain/nn/linear_weight.h"
#include "vlmtrain/nn/lora_settings.h"
#include "vlmtrain/nn/quantization.h"
#include "vlmtrain/nn/sharded_block.h"

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
  std::shared_ptr<ShardedBlock> sharded = nullptr;       ///< of a block of which this process has a part: that
  size_t number_in_block = 0;                            ///< there

  bool goes_with_adapter() const { return is_adapter || in_modules_to_save; }
  /// As the checkpoint has it.
  at::IntArrayRef sizes() const { return quantized ? quantized->sizes() : tensor.sizes(); }
  int64_t elements() const { return c10::multiply_integers(sizes()); }
  /// Whether the gradients of a block's parameters are summed up with the block's.
  bool is_trained_in_parts() const {
    return sharded && sharded->kind(number_in_block) == ShardedBlock::Kind::kTrained && tensor.requires_grad();
  }
  /// Without gradients: the tensor itself, or a new one with the quantised values. REQUIRES: not of a sharded block.
  at::Tensor values() const;
  /// Copies values of these sizes, converted or quantised.
  void set_values(const at::Tensor& values) const;
};

/// What the parameters of a model are, beside its configuration.
struct ParameterSettings {
  at::TensorOptions options;  ///< device and dtype
  std::optional<LoraSettings> lora = std::nullopt;
  Quantization quantization = Quantization::kNone;  ///< of the weights of all Linears; with LoRA only
  Shard shard = {};                                 ///< of the weights of blocks; adapters are everywhere
};

/// What the weight of a Linear is to be, a tensor or a quantised one; neither: a new one.
struct WeightPlace {
  at::Tensor tensor = {};
  std::shared_ptr<QuantizedWeight> quantized = nullptr;
};

/// A Linear of a model, by its place in the tree of names.
struct LinearPlace {
  std::string path;
  Component component;
  bool has_adapter;
};

/// The parameters [first, end) of ParameterStore::all() are those of a block.
struct BlockPlace {
  size_t first = 0;
  size_t end = 0;
  std::shared_ptr<ShardedBlock> sharded = nullptr;  ///< where this process has a part of it only
};

/// The parameters of a model in order of construction. Modules hold the same tensors.
class ParameterStore {
 public:
  /// New parameters are uninitialised. They require gradients; with LoRA only the adapters' and those
  /// of modules_to_save do.
  /// Throws UserError (kUsage) for a regular expression in target_modules that is none.
  explicit ParameterStore(ParameterSettings settings);
  explicit ParameterStore(at::TensorOptions options) : ParameterStore(ParameterSettings{options}) {}

  /// `place`: the tensor that it is to be, of these sizes; undefined: a new one.
  at::Tensor add(std::string name, Component component, at::IntArrayRef sizes, InitialValues initial,
                 bool is_adapter = false, const at::Tensor& place = {});

  at::Tensor add_embedding(std::string name, Component component, at::IntArrayRef sizes, InitialValues initial);

  /// The weight of a Linear, quantised if the settings say so.
  LinearWeight add_linear_weight(std::string name, Component component, at::IntArrayRef sizes, InitialValues initial,
                                 const WeightPlace& place = {});
  /// Places for weights [out_features[i], in_features] of one operand. REQUIRES: quantizes() one of them.
  std::vector<std::shared_ptr<QuantizedWeight>> quantized_places(const std::vector<int64_t>& out_features,
                                                                 int64_t in_features) const {
    return quantizer_->make_group(out_features, in_features);
  }
  /// Whether the weight of a Linear with this name is.
  bool quantizes(const std::string& name) const;

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
  const std::vector<BlockPlace>& blocks() const { return blocks_; }
  const Shard& shard() const { return settings_.shard; }

  /// Called just before a forward pass reads parameters [first, end) of all(): those of a block before it runs, all
  /// others before the first of them is read. Where weights travel between ranks, that is when they have to be there.
  using BeforeUse = std::function<void(size_t first, size_t end)>;
  void set_before_use(BeforeUse before_use) { before_use_ = std::move(before_use); }
  void use_block(size_t first, size_t end) const {
    if (before_use_) before_use_(first, end);
    if (block_weights_ != nullptr) block_weights_->use(first);
  }
  void use_outside_of_blocks() const;

  /// What brings the weights of sharded blocks together; null: nothing does, so that none can be read. These calls are
  /// BlockWeights', and do nothing where no block is sharded.
  void set_block_weights(BlockWeights* weights) { block_weights_ = weights; }
  bool are_blocks_brought() const { return block_weights_ != nullptr; }
  void begin_pass(const PassShape& shape) const {
    if (block_weights_ != nullptr) block_weights_->begin_pass(shape);
  }
  /// A block is about to be read by the backward pass.
  void use_block_again(size_t first) const {
    if (block_weights_ != nullptr) block_weights_->use(first);
  }
  void end_pass() const {
    if (block_weights_ != nullptr) block_weights_->end_pass();
  }
  void follow() const {
    if (block_weights_ != nullptr) block_weights_->follow();
  }
  /// Parameter::values() of any. Those of a sharded block are brought, which the other processes have to follow.
  at::Tensor values_of(const Parameter& parameter) const;

  int64_t total_elements() const;

 private:
  bool takes(const LoraTarget& target, const LinearPlace& linear) const;
  void shard_block(BlockPlace& block);

  ParameterSettings settings_;
  std::optional<Quantizer> quantizer_;
  std::vector<LoraTarget> targets_;
  std::vector<Parameter> parameters_;
  std::vector<LinearPlace> linears_;
  std::vector<BlockPlace> blocks_;
  BeforeUse before_use_;
  BlockWeights* block_weights_ = nullptr;
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
  /// `place` is ParameterStore::add's, here and below.
  at::Tensor parameter(std::string_view name, at::IntArrayRef sizes, InitialValues initial,
                       const at::Tensor& place = {}) const;
  at::Tensor embedding(std::string_view name, at::IntArrayRef sizes, InitialValues initial) const;
  /// The weight of the Linear that is here.
  LinearWeight linear_weight(at::IntArrayRef sizes, InitialValues initial, const WeightPlace& place = {}) const;
  bool quantizes_linear_weight() const;
  at::Tensor adapter_parameter(std::string_view name, at::IntArrayRef sizes, InitialValues initial,
                               const at::Tensor& place = {}) const;
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
