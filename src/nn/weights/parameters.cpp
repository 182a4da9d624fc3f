#include "vlmtrain/nn/weights/parameters.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::nn {

InitialValues InitialValues::kaiming(int64_t fan_in, double gain) {
  return {0, gain / std::sqrt(static_cast<double>(fan_in))};
}

at::Tensor Parameter::values() const {
  if (is_on_host() && !quantized_weight) return sharded_block->view_host_values(index_in_block).view(sizes());
  VLMTRAIN_CHECK(!sharded_block || sharded_block->is_unsharded(), "{} is sharded; unshard it before reading its values",
                 name);
  return quantized_weight ? quantized_weight->dequantize() : tensor.detach();
}

void Parameter::set_values(const at::Tensor& values) const {
  if (sharded_block) {
    sharded_block->set_values(index_in_block, values);
  } else if (quantized_weight) {
    quantized_weight->quantize(values);
  } else {
    tensor.detach().copy_(values);
  }
}

ParameterStore::ParameterStore(ParameterSettings settings)
    : settings_(std::move(settings)),
      table_arena_(settings_.options.device()),
      block_arena_(settings_.options.device()) {
  if (settings_.quantization != Quantization::kNone) {
    VLMTRAIN_CHECK(settings_.lora.has_value(),
                   "quantization requires LoRA, because quantized weights cannot be trained");
    quantizer_.emplace(settings_.quantization, settings_.options);
  }
  if (!settings_.lora) return;
  for (const auto& text : settings_.lora->target_modules) lora_targets_.emplace_back(text);
}

at::Tensor ParameterStore::add(std::string name, Component component, at::IntArrayRef sizes,
                               InitialValues initial_values, bool is_adapter, const at::Tensor& storage) {
  const bool is_trainable = nn::is_trainable(component);
  const bool is_in_modules_to_save =
      is_trainable && !is_adapter && settings_.lora && settings_.lora->matches_modules_to_save(name);
  const bool is_trained = is_trainable && (is_adapter || is_in_modules_to_save || !settings_.lora);
  at::Tensor tensor = storage.defined() ? storage : at::empty(sizes, settings_.options);
  tensor.set_requires_grad(is_trained);
  parameters_.push_back({std::move(name), component, tensor, initial_values, is_adapter, is_in_modules_to_save});
  return tensor;
}

at::Tensor ParameterStore::add_embedding(std::string name, Component component, at::IntArrayRef sizes,
                                         InitialValues initial_values) {
  at::Tensor tensor = add(std::move(name), component, sizes, initial_values);
  parameters_.back().is_embedding = true;
  return tensor;
}

bool ParameterStore::should_quantize(const std::string& name) const {
  return quantizer_ && !settings_.lora->matches_modules_to_save(name);
}

PlacedTable ParameterStore::add_per_layer_table(std::string name, Component component, at::IntArrayRef sizes,
                                                InitialValues initial_values) {
  const bool is_on_host = settings_.per_layer_tables == MemoryPlacement::kHost;
  const at::Tensor storage = is_on_host
                                 ? table_arena_.allocate(sizes, c10::typeMetaToScalarType(settings_.options.dtype()),
                                                         keys::memory::kPerLayerEmbeddings.data())
                                 : at::Tensor();
  const at::Tensor weight = add(std::move(name), component, sizes, initial_values, /*is_adapter=*/false, storage);
  parameters_.back().is_embedding = parameters_.back().is_per_layer_table = true;
  return {weight, is_on_host ? table_arena_.view_on_device(weight) : weight};
}

const Parameter* ParameterStore::find_per_layer_table() const {
  const auto it = std::ranges::find_if(parameters_, &Parameter::is_per_layer_table);
  return it == parameters_.end() ? nullptr : &*it;
}

LinearWeight ParameterStore::add_linear_weight(std::string name, Component component, at::IntArrayRef sizes,
                                               InitialValues initial_values, const WeightStorage& storage) {
  if (!should_quantize(name)) {
    const at::Tensor tensor =
        add(std::move(name), component, sizes, initial_values, /*is_adapter=*/false, storage.tensor);
    parameters_.back().is_linear_weight = true;
    return LinearWeight(tensor);
  }
  auto weight = storage.quantized_weight ? storage.quantized_weight : quantizer_->make_weight(sizes);
  parameters_.push_back({std::move(name), component, weight->state().front().second, initial_values,
                         /*is_adapter=*/false,
                         /*is_in_modules_to_save=*/false, weight});
  return LinearWeight(std::move(weight));
}

const LoraSettings* ParameterStore::register_linear(const std::string& path, Component component) {
  LinearInfo linear{path, component, /*has_adapter=*/false};
  linear.has_adapter =
      std::ranges::any_of(lora_targets_, [&](const LoraTarget& target) { return matches_target(target, linear); });
  linears_.push_back(linear);
  return linear.has_adapter ? &*settings_.lora : nullptr;
}

bool ParameterStore::matches_target(const LoraTarget& target, const LinearInfo& linear) const {
  const auto& excluded_components = settings_.lora->excluded_components;
  // PEFT also adapts modules that never run. An adapter that was loaded from PEFT keeps their
  // adapters.
  const bool can_have_adapter = linear.component != Component::kUnused || !settings_.lora->adapter.empty();
  return can_have_adapter && std::ranges::find(excluded_components, linear.component) == excluded_components.end() &&
         !settings_.lora->matches_modules_to_save(linear.path) && target.matches(linear.path);
}

std::vector<std::string> ParameterStore::find_unmatched_targets() const {
  std::vector<std::string> unmatched_targets;
  for (const auto& target : lora_targets_) {
    const auto is_match = [&](const LinearInfo& linear) { return matches_target(target, linear); };
    if (std::ranges::none_of(linears_, is_match)) unmatched_targets.push_back(target.pattern());
  }
  return unmatched_targets;
}

std::vector<std::string> ParameterStore::find_unmatched_modules_to_save() const {
  std::vector<std::string> unmatched_modules;
  if (!settings_.lora) return unmatched_modules;
  for (const auto& module : settings_.lora->modules_to_save) {
    const auto is_in_module = [&](const Parameter& parameter) {
      return parameter.is_in_modules_to_save && is_under_module(parameter.name, module);
    };
    if (std::ranges::none_of(parameters_, is_in_module)) unmatched_modules.push_back(module);
  }
  return unmatched_modules;
}

std::vector<at::Tensor> ParameterStore::finish_block(size_t first) {
  blocks_.push_back({.first = first, .end = parameters_.size()});
  if (unshards_blocks()) shard_block(blocks_.back());
  std::vector<at::Tensor> tensors;
  for (size_t i = first; i < parameters_.size(); ++i) {
    parameters_[i].is_in_block = true;
    tensors.push_back(parameters_[i].tensor);
  }
  return tensors;
}

void ParameterStore::shard_block(BlockRange& block) {
  std::vector<ShardedBlock::Weight> weights;
  std::vector<size_t> members;
  for (size_t i = block.first; i < block.end; ++i) {
    const Parameter& parameter = parameters_[i];
    if (parameter.is_adapter) continue;
    const auto kind =
        parameter.tensor.requires_grad() ? ShardedBlock::SectionKind::kTrained : ShardedBlock::SectionKind::kFrozen;
    weights.push_back({.kind = kind, .tensor = parameter.tensor, .quantized_weight = parameter.quantized_weight});
    members.push_back(i);
  }
  if (weights.empty()) return;
  block.sharded_block =
      std::make_shared<ShardedBlock>(weights, settings_.options, settings_.shard,
                                     settings_.blocks == MemoryPlacement::kHost ? &block_arena_ : nullptr);
  for (size_t index = 0; index < members.size(); ++index) {
    Parameter& parameter = parameters_[members[index]];
    parameter.sharded_block = block.sharded_block;
    parameter.index_in_block = index;
    if (parameter.quantized_weight) parameter.tensor = parameter.quantized_weight->state().front().second;
  }
}

at::Tensor ParameterStore::unshard_values(const Parameter& parameter) const {
  const bool is_readable = !parameter.sharded_block || parameter.sharded_block->is_unsharded() ||
                           (parameter.is_on_host() && !parameter.quantized_weight);
  if (is_readable) return parameter.values();
  VLMTRAIN_CHECK(block_unsharder_ != nullptr, "cannot unshard {}: no unsharder is set", parameter.name);
  const auto block = std::ranges::find(blocks_, parameter.sharded_block, &BlockRange::sharded_block);
  block_unsharder_->unshard_block(block->first);
  return parameter.values();
}

void ParameterStore::prepare_non_block_parameters() const {
  if (!forward_pre_hook_) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].is_in_block) forward_pre_hook_(i, i + 1);
  }
}

int64_t ParameterStore::count_elements() const {
  int64_t total = 0;
  for (const auto& parameter : parameters_) total += parameter.elements();
  return total;
}

ParameterScope ParameterScope::operator/(std::string_view name) const {
  return {*store_, component_, fmt::format("{}.{}", prefix_, name)};
}

at::Tensor ParameterScope::add_parameter(std::string_view name, at::IntArrayRef sizes, InitialValues initial_values,
                                         const at::Tensor& storage) const {
  return store_->add(fmt::format("{}.{}", prefix_, name), component_, sizes, initial_values, /*is_adapter=*/false,
                     storage);
}

at::Tensor ParameterScope::add_embedding(std::string_view name, at::IntArrayRef sizes,
                                         InitialValues initial_values) const {
  return store_->add_embedding(fmt::format("{}.{}", prefix_, name), component_, sizes, initial_values);
}

PlacedTable ParameterScope::add_per_layer_table(std::string_view name, at::IntArrayRef sizes,
                                                InitialValues initial_values) const {
  return store_->add_per_layer_table(fmt::format("{}.{}", prefix_, name), component_, sizes, initial_values);
}

LinearWeight ParameterScope::add_linear_weight(at::IntArrayRef sizes, InitialValues initial_values,
                                               const WeightStorage& storage) const {
  return store_->add_linear_weight(fmt::format("{}.weight", prefix_), component_, sizes, initial_values, storage);
}

void ParameterScope::declare_unread(std::string_view name) const {
  store_->declare_unread(fmt::format("{}.{}", prefix_, name));
}

bool ParameterScope::should_quantize_linear_weight() const {
  return store_->should_quantize(fmt::format("{}.weight", prefix_));
}

at::Tensor ParameterScope::add_adapter_parameter(std::string_view name, at::IntArrayRef sizes,
                                                 InitialValues initial_values, const at::Tensor& storage) const {
  return store_->add(fmt::format("{}.{}", prefix_, name), component_, sizes, initial_values, /*is_adapter=*/true,
                     storage);
}

}  // namespace vlmtrain::nn
