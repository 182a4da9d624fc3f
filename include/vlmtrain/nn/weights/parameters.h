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
  static InitialValues kaiming(int64_t fan_in, double gain = 1);
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
  size_t index_in_block = 0;                             ///< there

  bool is_saved_with_adapter() const { return is_adapter || in_modules_to_save; }
  /// As the checkpoint has it.
  at::IntArrayRef sizes() const { return quantized ? quantized->sizes() : tensor.sizes(); }
  int64_t elements() const { return c10::multiply_integers(sizes()); }
  /// Whether the gradients of a block's parameters are summed up with the block's.
  bool has_sharded_gradient() const {
    return sharded && sharded->kind(index_in_block) == ShardedBlock::Kind::kTrained && tensor.requires_grad();
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
struct WeightStorage {
  at::Tensor tensor = {};
  std::shared_ptr<QuantizedWeight> quantized = nullptr;
};

/// A Linear of a model, by its place in the tree of names.
struct LinearInfo {
  std::string path;
  Component component;
  bool has_adapter;
};

/// The parameters [first, end) of ParameterStore::all() are those of a block.
struct BlockRange {
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

  /// `storage`: the tensor that it is to be, of these sizes; undefined: a new one.
  at::Tensor add(std::string name, Component component, at::IntArrayRef sizes, InitialValues initial,
                 bool is_adapter = false, const at::Tensor& storage = {});

  at::Tensor add_embedding(std::string name, Component component, at::IntArrayRef sizes, InitialValues initial);

  /// The weight of a Linear, quantised if the settings say so.
  LinearWeight add_linear_weight(std::string name, Component component, at::IntArrayRef sizes, InitialValues initial,
                                 const WeightStorage& storage = {});
  /// Places for weights [out_features[i], in_features] of one operand. REQUIRES: quantizes() one of them.
  std::vector<std::shared_ptr<QuantizedWeight>> allocate_quantized(const std::vector<int64_t>& out_features,
                                                                   int64_t in_features) const {
    return quantizer_->make_group(out_features, in_features);
  }
  /// Whether the weight of a Linear with this name is.
  bool quantizes(const std::string& name) const;

  /// Notes a Linear. Returns the settings of its adapter if it is to have one.
  const LoraSettings* add_linear(const std::string& path, Component component);

  const std::vector<Parameter>& all() const { return parameters_; }
  const std::vector<LinearInfo>& linears() const { return linears_; }
  /// The entries of target_modules that no adapter follows from.
  std::vector<std::string> find_unmatched_targets() const;
  /// The entries of modules_to_save that no trained parameter follows from.
  std::vector<std::string> find_unmatched_modules_to_save() const;
  const std::optional<LoraSettings>& lora() const { return settings_.lora; }
  Quantization quantization() const { return settings_.quantization; }
  const at::TensorOptions& options() const { return settings_.options; }
  /// What was added since all() had `first` entries is one block. Returns its tensors.
  std::vector<at::Tensor> close_block(size_t first);
  const std::vector<BlockRange>& blocks() const { return blocks_; }
  const Shard& shard() const { return settings_.shard; }

  /// Called just before a forward pass reads parameters [first, end) of all(): those of a block before it runs, all
  /// others before the first of them is read. Where weights travel between ranks, that is when they have to be there.
  using ForwardPreHook = std::function<void(size_t first, size_t end)>;
  void set_forward_pre_hook(ForwardPreHook pre_hook) { forward_pre_hook_ = std::move(pre_hook); }
  void prepare_block_forward(size_t first, size_t end) const {
    if (forward_pre_hook_) forward_pre_hook_(first, end);
    if (block_unsharder_ != nullptr) block_unsharder_->prepare_block(first);
  }
  void prepare_non_block_parameters() const;

  /// What brings the weights of sharded blocks together; null: nothing does, so that none can be read. These calls are
  /// BlockUnsharder', and do nothing where no block is sharded.
  void set_block_unsharder(BlockUnsharder* unsharder) { block_unsharder_ = unsharder; }
  bool has_block_unsharder() const { return block_unsharder_ != nullptr; }
  void begin_pass(const PassSpec& spec) const {
    if (block_unsharder_ != nullptr) block_unsharder_->begin_pass(spec);
  }
  /// A block is about to be read by the backward pass.
  void prepare_block_backward(size_t first) const {
    if (block_unsharder_ != nullptr) block_unsharder_->prepare_block(first);
  }
  void end_pass() const {
    if (block_unsharder_ != nullptr) block_unsharder_->end_pass();
  }
  void join_remaining_passes() const {
    if (block_unsharder_ != nullptr) block_unsharder_->join_remaining_passes();
  }
  /// Parameter::values() of any. Those of a sharded block are brought, which the other processes have to follow.
  at::Tensor full_values(const Parameter& parameter) const;

  int64_t total_elements() const;

 private:
  bool matches_target(const LoraTarget& target, const LinearInfo& linear) const;
  void shard_block(BlockRange& block);

  ParameterSettings settings_;
  std::optional<Quantizer> quantizer_;
  std::vector<LoraTarget> targets_;
  std::vector<Parameter> parameters_;
  std::vector<LinearInfo> linears_;
  std::vector<BlockRange> blocks_;
  ForwardPreHook forward_pre_hook_;
  BlockUnsharder* block_unsharder_ = nullptr;
};

/// A place in the tree of parameter names, such as `model.text_model.layers.3`.
class ParameterScope {
 public:
  ParameterScope(ParameterStore& store, Component component, std::string prefix)
      : store_(&store), component_(component), prefix_(std::move(prefix)) {}

  ParameterScope operator/(std::string_view name) const;
  ParameterScope operator/(int64_t index) const { return *this / std::to_string(index); }
  /// The same place, of another component.
  ParameterScope with_component(Component component) const { return {*store_, component, prefix_}; }
  /// `storage` is ParameterStore::add's, here and below.
  at::Tensor parameter(std::string_view name, at::IntArrayRef sizes, InitialValues initial,
                       const at::Tensor& storage = {}) const;
  at::Tensor embedding(std::string_view name, at::IntArrayRef sizes, InitialValues initial) const;
  /// The weight of the Linear that is here.
  LinearWeight linear_weight(at::IntArrayRef sizes, InitialValues initial, const WeightStorage& storage = {}) const;
  bool quantizes_linear_weight() const;
  at::Tensor adapter_parameter(std::string_view name, at::IntArrayRef sizes, InitialValues initial,
                               const at::Tensor& storage = {}) const;
  /// Notes that a Linear is here; see ParameterStore::add_linear.
  const LoraSettings* register_linear() const { return store_->add_linear(prefix_, component_); }
  ParameterStore& store() const { return *store_; }
  const std::string& path() const { return prefix_; }

 private:
  ParameterStore* store_;
  Component component_;
  std::string prefix_;
};

}  // namespace vlmtrain::nn
