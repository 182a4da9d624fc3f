#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/memory/host_arena.h"
#include "vlmtrain/nn/weights/quantized_weight.h"
#include "vlmtrain/nn/weights/sharded_block.h"
#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::nn {

class ActivationOffloader;

/// The distribution of a parameter's random initial values: normal with this mean and standard
/// deviation, or uniform in mean ± deviation.
struct InitialValues {
  double mean = 0;
  double deviation = 0;
  bool is_uniform = false;

  static InitialValues zeros() { return {0, 0}; }
  static InitialValues ones() { return {1, 0}; }
  /// Returns N(0, gain² / fan_in). With gain 1, the sum of `fan_in` products of weights and inputs
  /// of variance 1 has variance 1.
  static InitialValues kaiming(int64_t fan_in, double gain = 1);
  /// Returns the uniform distribution in ±bound.
  static InitialValues uniform(double bound) { return {0, bound, true}; }
};

/// A parameter of a model. Copies of the struct share the tensor.
struct Parameter {
  std::string name;  ///< name in the checkpoint
  Component component;
  at::Tensor tensor;  ///< if quantized, the packed values, which only QuantizedWeight interprets
  InitialValues initial_values;
  bool is_adapter = false;             ///< belongs to a LoRA adapter, not to the checkpoint
  bool is_in_modules_to_save = false;  ///< in the checkpoint, but trained and saved with the adapter
  std::shared_ptr<QuantizedWeight> quantized_weight = nullptr;  ///< null if not quantized
  bool is_embedding = false;                                    ///< a lookup table, such as embed_tokens
  bool is_per_layer_table = false;                              ///< see ParameterStore::add_per_layer_table()
  bool is_linear_weight = false;                                ///< the weight of a Linear, [out, in]
  bool is_in_block = false;                               ///< belongs to a block; see ParameterStore::finish_block()
  std::shared_ptr<ShardedBlock> sharded_block = nullptr;  ///< the sharded block that it belongs to; null if not sharded
  size_t index_in_block = 0;                              ///< index among the weights of `sharded_block`

  /// Returns whether an adapter checkpoint contains the parameter.
  bool is_saved_with_adapter() const { return is_adapter || is_in_modules_to_save; }
  /// Returns the sizes in the checkpoint, before quantization and sharding.
  at::IntArrayRef sizes() const { return quantized_weight ? quantized_weight->sizes() : tensor.sizes(); }
  int64_t elements() const { return c10::multiply_integers(sizes()); }
  /// Returns whether the gradient is reduced together with the gradients of its sharded block.
  bool has_sharded_gradient() const {
    return sharded_block && !sharded_block->is_whole() &&
           sharded_block->section_kind(index_in_block) == ShardedBlock::SectionKind::kTrained && tensor.requires_grad();
  }
  /// Returns whether the values are whole in host memory, as they are or packed.
  bool is_on_host() const { return sharded_block && sharded_block->is_on_host() && sharded_block->is_whole(); }
  /// Returns whether the tensors are, or when their block runs will be, in one allocation.
  bool shares_allocation(const Parameter& other) const {
    if (!is_on_host() || !other.is_on_host()) return tensor.is_alias_of(other.tensor);
    return sharded_block == other.sharded_block && sharded_block->are_adjacent(index_in_block, other.index_in_block);
  }
  /// Returns the values without gradients: the tensor itself, a CPU tensor if they are in host memory, or
  /// a new tensor of dequantized values. Throws InternalError if it belongs to a sharded block that is
  /// not unsharded.
  at::Tensor values() const;
  /// Copies `values` of shape sizes(), converted to the dtype or quantized. In a sharded block,
  /// copies the local part only.
  void set_values(const at::Tensor& values) const;
};

/// Settings of the parameters of a model.
struct ParameterSettings {
  at::TensorOptions options;  ///< device and dtype
  std::optional<LoraSettings> lora = std::nullopt;
  Quantization quantization = Quantization::kNone;  ///< format of all Linear weights; requires `lora`
  Shard shard = {};  ///< this rank's shard of the blocks' weights; adapters are replicated
  MemoryPlacement per_layer_tables = MemoryPlacement::kDevice;  ///< see ParameterStore::add_per_layer_table()
  MemoryPlacement blocks = MemoryPlacement::kDevice;            ///< of the blocks' weights, except for adapters
};

/// Existing storage for the weight of a Linear: a tensor or a quantized weight. If both are empty,
/// new storage is allocated.
struct WeightStorage {
  at::Tensor tensor = {};
  std::shared_ptr<QuantizedWeight> quantized_weight = nullptr;
};

/// A lookup table that may be in host memory.
struct PlacedTable {
  at::Tensor weight;       ///< the parameter; on the CPU if it is in host memory
  at::Tensor device_view;  ///< the same memory on the model's device; `weight` itself if it is there
};

/// A registered Linear of a model.
struct LinearInfo {
  std::string path;  ///< prefix of its parameters' names
  Component component;
  bool has_adapter;
};

/// A block: parameters [first, end) of ParameterStore::all().
struct BlockRange {
  size_t first = 0;
  size_t end = 0;
  std::shared_ptr<ShardedBlock> sharded_block = nullptr;  ///< null if not sharded
};

/// The parameters of a model in order of construction. Modules hold the same tensors. The store
/// also runs hooks before parameters are read. Not thread-safe.
class ParameterStore {
 public:
  /// Creates an empty store. New parameters are uninitialized and require gradients; with LoRA only
  /// those of adapters and modules_to_save do. Throws UserError (kUsage) for an invalid regular
  /// expression in target_modules, and InternalError for quantization without LoRA.
  explicit ParameterStore(ParameterSettings settings);
  explicit ParameterStore(at::TensorOptions options) : ParameterStore(ParameterSettings{options}) {}

  /// Adds a parameter and returns its tensor: `storage`, of these sizes, if defined, else a new
  /// tensor.
  at::Tensor add(std::string name, Component component, at::IntArrayRef sizes, InitialValues initial_values,
                 bool is_adapter = false, const at::Tensor& storage = {});

  /// Adds a parameter that is a lookup table.
  at::Tensor add_embedding(std::string name, Component component, at::IntArrayRef sizes, InitialValues initial_values);

  /// Adds a lookup table of per-layer embeddings, in the memory that the settings name. In host
  /// memory, it must not be trained. Throws the exceptions of memory::HostArena::allocate().
  PlacedTable add_per_layer_table(std::string name, Component component, at::IntArrayRef sizes,
                                  InitialValues initial_values);
  /// Returns the table of per-layer embeddings; null if there is none.
  const Parameter* find_per_layer_table() const;
  /// Returns the bytes of tables in host memory that a device reads; 0 if the device is the CPU.
  int64_t host_table_bytes() const { return settings_.options.device().is_cpu() ? 0 : table_arena_.bytes(); }
  /// Returns the bytes of the blocks' weights in host memory.
  int64_t host_block_bytes() const { return block_arena_.bytes(); }

  /// Adds the weight of a Linear, [out, in]; quantized if should_quantize(name).
  LinearWeight add_linear_weight(std::string name, Component component, at::IntArrayRef sizes,
                                 InitialValues initial_values, const WeightStorage& storage = {});
  /// Returns uninitialized quantized weights [out_features[i], in_features] for Linears that share
  /// one input. Does not add them. REQUIRES: should_quantize() returns true for one of them.
  std::vector<std::shared_ptr<QuantizedWeight>> allocate_quantized_weights(const std::vector<int64_t>& out_features,
                                                                           int64_t in_features) const {
    return quantizer_->make_weight_group(out_features, in_features);
  }
  /// Returns whether the weight of a Linear with this name is to be quantized.
  bool should_quantize(const std::string& name) const;

  /// Declares a tensor that checkpoints may have but the model does not read. It is kept in saved
  /// checkpoints.
  void declare_unread(std::string name) { unread_tensor_names_.insert(std::move(name)); }
  const std::set<std::string, std::less<>>& unread_tensor_names() const { return unread_tensor_names_; }

  /// Registers a Linear. Returns the settings of its adapter; null if it gets none.
  const LoraSettings* register_linear(const std::string& path, Component component);

  /// Returns all parameters in the order of their addition.
  const std::vector<Parameter>& all() const { return parameters_; }
  const std::vector<LinearInfo>& linears() const { return linears_; }
  /// Returns the entries of target_modules that match no Linear.
  std::vector<std::string> find_unmatched_targets() const;
  /// Returns the entries of modules_to_save that match no trainable parameter.
  std::vector<std::string> find_unmatched_modules_to_save() const;
  const std::optional<LoraSettings>& lora() const { return settings_.lora; }
  Quantization quantization() const { return settings_.quantization; }
  const at::TensorOptions& options() const { return settings_.options; }
  /// Declares the parameters added since all() had `first` entries to be one block, and shards it or moves
  /// it to host memory if the settings say so. Returns its tensors.
  std::vector<at::Tensor> finish_block(size_t first);
  const std::vector<BlockRange>& blocks() const { return blocks_; }
  const Shard& shard() const { return settings_.shard; }
  /// Returns whether the weights of blocks exist on the device only while the block is in use.
  bool unshards_blocks() const { return !shard().covers_all() || settings_.blocks == MemoryPlacement::kHost; }

  /// A hook that is called before a forward pass reads parameters [first, end) of all(). It is
  /// called once before each block runs, and once for each parameter outside of blocks before the
  /// first of them is read. When it returns, weights that an all_gather updates must have arrived.
  using ForwardPreHook = std::function<void(size_t first, size_t end)>;
  /// Sets the hook, replacing an earlier one.
  void set_forward_pre_hook(ForwardPreHook pre_hook) { forward_pre_hook_ = std::move(pre_hook); }
  /// Runs the hook and unshards the block. Called before each forward pass of a block.
  void prepare_block_forward(size_t first, size_t end) const {
    if (forward_pre_hook_) forward_pre_hook_(first, end);
    if (block_unsharder_ != nullptr) block_unsharder_->prepare_block(first);
  }
  /// Runs the hook for the parameters outside of blocks.
  void prepare_non_block_parameters() const;

  /// Sets the unsharder of the blocks, not owned; null removes it, and sharded blocks cannot be
  /// read then. The functions below forward to it and do nothing without one.
  void set_block_unsharder(BlockUnsharder* unsharder) { block_unsharder_ = unsharder; }
  bool has_block_unsharder() const { return block_unsharder_ != nullptr; }
  /// See BlockUnsharder.
  void begin_pass(const ForwardPassSpec& spec) const {
    if (block_unsharder_ != nullptr) block_unsharder_->begin_pass(spec);
  }
  /// Unshards a block for the backward pass.
  void prepare_block_backward(size_t first) const {
    if (block_unsharder_ != nullptr) block_unsharder_->prepare_block(first);
  }
  /// See BlockUnsharder.
  void end_pass() const {
    if (block_unsharder_ != nullptr) block_unsharder_->end_pass();
  }
  /// See BlockUnsharder.
  void join_remaining_passes() const {
    if (block_unsharder_ != nullptr) block_unsharder_->join_remaining_passes();
  }
  /// Sets the host memory for the inputs of checkpointed blocks, not owned; null: they stay on the device.
  void set_activation_offloader(ActivationOffloader* offloader) { activation_offloader_ = offloader; }
  ActivationOffloader* activation_offloader() const { return activation_offloader_; }
  /// Returns Parameter::values() and unshards the parameter's block if needed. To unshard, the
  /// other ranks must be in join_remaining_passes(). Throws InternalError if the block is sharded
  /// and no unsharder is set.
  at::Tensor unshard_values(const Parameter& parameter) const;

  /// Returns the number of elements of all parameters, before quantization and sharding.
  int64_t count_elements() const;

 private:
  bool matches_target(const LoraTarget& target, const LinearInfo& linear) const;
  void shard_block(BlockRange& block);

  ParameterSettings settings_;
  std::optional<Quantizer> quantizer_;
  memory::HostArena table_arena_, block_arena_;
  std::vector<LoraTarget> lora_targets_;
  std::vector<Parameter> parameters_;
  std::vector<LinearInfo> linears_;
  std::set<std::string, std::less<>> unread_tensor_names_;
  std::vector<BlockRange> blocks_;
  ForwardPreHook forward_pre_hook_;
  BlockUnsharder* block_unsharder_ = nullptr;
  ActivationOffloader* activation_offloader_ = nullptr;
};

/// A prefix of parameter names, such as `model.text_model.layers.3`. The store must outlive it.
class ParameterScope {
 public:
  ParameterScope(ParameterStore& store, Component component, std::string prefix)
      : store_(&store), component_(component), prefix_(std::move(prefix)) {}

  /// Returns the scope `prefix.name`.
  ParameterScope operator/(std::string_view name) const;
  ParameterScope operator/(int64_t index) const { return *this / std::to_string(index); }
  /// Returns the same prefix for parameters of another component.
  ParameterScope with_component(Component component) const { return {*store_, component, prefix_}; }
  /// Adds a parameter under the prefix; see ParameterStore::add().
  at::Tensor add_parameter(std::string_view name, at::IntArrayRef sizes, InitialValues initial_values,
                           const at::Tensor& storage = {}) const;
  /// Adds a lookup table; see ParameterStore::add_embedding().
  at::Tensor add_embedding(std::string_view name, at::IntArrayRef sizes, InitialValues initial_values) const;
  /// Adds a lookup table; see ParameterStore::add_per_layer_table().
  PlacedTable add_per_layer_table(std::string_view name, at::IntArrayRef sizes, InitialValues initial_values) const;
  /// Adds `weight` of the Linear at this prefix; see ParameterStore::add_linear_weight().
  LinearWeight add_linear_weight(at::IntArrayRef sizes, InitialValues initial_values,
                                 const WeightStorage& storage = {}) const;
  /// Returns whether the weight of the Linear at this prefix is to be quantized.
  bool should_quantize_linear_weight() const;
  /// Adds a parameter of a LoRA adapter.
  at::Tensor add_adapter_parameter(std::string_view name, at::IntArrayRef sizes, InitialValues initial_values,
                                   const at::Tensor& storage = {}) const;
  /// Declares the tensor `name` under the prefix; see ParameterStore::declare_unread().
  void declare_unread(std::string_view name) const;
  /// Registers the Linear at this prefix; see ParameterStore::register_linear().
  const LoraSettings* register_linear() const { return store_->register_linear(prefix_, component_); }
  ParameterStore& store() const { return *store_; }
  const std::string& path() const { return prefix_; }

 private:
  ParameterStore* store_;
  Component component_;
  std::string prefix_;
};

}  // namespace vlmtrain::nn
