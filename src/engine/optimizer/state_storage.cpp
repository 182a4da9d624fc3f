#include "engine/optimizer/state_storage.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

namespace {

static_assert(kShardAlignment == kBlockElements, "a block of compressed states belongs to one rank");

/// Maximum number of blocks of a group with compressed moments. ATen's kernels index bytes with 32
/// bits. In a larger group, both moments of a chunk would be further apart, so each operation on
/// both would take two launches.
constexpr int64_t kMaxGroupBlocks = (int64_t{1} << 30) / kBlockElements;

/// Smaller parameters have moments and masters in fp32. As in bitsandbytes (min_8bit_size).
constexpr int64_t kMinCompressedElements = 4096;

/// Returns whether the moments of the parameter are compressed.
bool compresses_moments(const OptimizerSettings& settings, const nn::Parameter& parameter) {
  if (settings.state_dtype == OptimizerStateDtype::kFp32 || parameter.elements() < kMinCompressedElements) return false;
  return settings.state_dtype != OptimizerStateDtype::k8Bit || !parameter.is_embedding ||
         settings.compresses_embedding_states;
}

/// Returns the part of a parameter that this rank updates, as a view of the parameter, of its shard, or of
/// its memory on the host.
at::Tensor get_local_weight(const nn::Parameter& parameter, const ElementRange& range, const Shard& shard,
                            bool is_elementwise) {
  if (parameter.has_sharded_gradient()) return parameter.sharded_block->view_local_values(parameter.index_in_block);
  if (parameter.sharded_block)
    return parameter.sharded_block->view_local_values(parameter.index_in_block).view(parameter.sizes());
  const at::Tensor full_weight = parameter.tensor.detach();
  const bool is_whole = shard.covers_all() || (!is_elementwise && range.count > 0);
  return is_whole ? full_weight : full_weight.view(-1).narrow(0, range.first, range.count);
}

}  // namespace

/// In fp32, in two halves, or if it is rounded stochastically, the weight.
nn::StoredTensor OptimizerStateStorage::get_stored_master(const ParameterState& parameter) const {
  return {memory::view_on_host(parameter.master.defined() ? parameter.master : parameter.weight),
          parameter.low_bits.defined() ? memory::view_on_host(parameter.low_bits) : at::Tensor()};
}

OptimizerStateTensor OptimizerStateStorage::make_master_state_tensor(const ParameterState& parameter) const {
  return {.name = "master." + parameter.name,
          .values = get_stored_master(parameter),
          .first = parameter.range.first,
          .total = parameter.parameter.numel(),
          .is_sharded = true,
          .parameter = &parameter,
          .is_master = true};
}

OptimizerStateStorage::OptimizerStateStorage(const nn::ParameterStore& store, const GradientBuckets& buckets,
                                             const OptimizerSettings& settings, const UpdateRules& rules,
                                             Offload offload)
    : rules_(rules),
      options_(store.options().dtype(at::kFloat)),
      memory_(options_, offload != Offload::kNone),
      state_dtype_(settings.state_dtype) {
  const auto groups = assign_parameter_groups(store, settings);
  VLMTRAIN_CHECK(buckets.size() == groups.size(), "the buckets have {} gradients for {} trained parameters",
                 buckets.size(), groups.size());
  for (const auto& parameter : store.all()) {
    if (!parameter.tensor.requires_grad()) continue;
    const ParameterGroup& group = groups[parameters_.size()];
    const ElementRange range = buckets.get_local_range(parameters_.size());
    const bool is_elementwise = get_optimizer_info(group.rule).is_elementwise;
    VLMTRAIN_CHECK(is_elementwise || range.count == 0 || range.count == parameter.elements(),
                   "{} is divided among ranks, but its optimizer needs it whole", parameter.name);
    const at::Tensor weight = get_local_weight(parameter, range, buckets.shard(), is_elementwise);
    ParameterState state{parameter.name, group, parameter.tensor, range, weight};
    add_master(state, parameter, settings);
    if (!compresses_moments(settings, parameter)) add_moments(state);
    parameters_.push_back(std::move(state));
  }
  if (settings.state_dtype != OptimizerStateDtype::kFp32) tables_.emplace(settings.state_dtype, options_);
  if (settings.master_weights == MasterWeights::kStochastic) weight_rounding_ = make_generator(options_);
  make_block_groups();
}

/// Creates the master of a parameter. It is in fp32 if it is small, as those of adapters are, if the
/// rule needs it in fp32, or if the rows of the weight have padding.
void OptimizerStateStorage::add_master(ParameterState& state, const nn::Parameter& parameter,
                                       const OptimizerSettings& settings) {
  const bool is_reduced = !parameter.is_adapter && parameter.elements() >= kMinCompressedElements &&
                          get_optimizer_info(state.group.rule).is_elementwise && state.weight.is_contiguous();
  state.master_weights = is_reduced ? settings.choose_master_weights(options_.device().is_cuda(),
                                                                     state.weight.scalar_type() == at::kBFloat16)
                                    : MasterWeights::kFp32;
  if (state.master_weights == MasterWeights::kSplit) state.low_bits = make_zeros(state, at::kShort);
  if (state.master_weights != MasterWeights::kFp32) return;
  const bool is_own_master = state.weight.scalar_type() == at::kFloat;
  state.master = is_own_master ? state.weight : make_zeros(state, at::kFloat).copy_(state.weight);
}

/// Creates fp32 moments.
void OptimizerStateStorage::add_moments(ParameterState& state) {
  state.moments.resize(rules_.get(state.group.rule).moment_names().size());
  for (at::Tensor& moment : state.moments) moment = make_zeros(state, at::kFloat);
}

/// Returns zeros in the shape of the weight. They are on the device if they are small, or if the rule
/// would read them over the link more than once.
at::Tensor OptimizerStateStorage::make_zeros(const ParameterState& state, at::ScalarType dtype) {
  const bool is_resident =
      state.weight.numel() < kMinCompressedElements || !get_optimizer_info(state.group.rule).is_elementwise;
  return is_resident ? memory_.make_resident_zeros(state.weight.sizes(), dtype)
                     : memory_.make_zeros(state.weight.sizes(), dtype);
}

bool OptimizerStateStorage::is_updated_in_chunks(const ParameterState& parameter) const {
  return !is_fused(parameter) &&
         (parameter.has_compressed_moments() || parameter.master_weights != MasterWeights::kFp32);
}

bool OptimizerStateStorage::is_in_block_group(const ParameterState& parameter) const {
  return parameter.has_compressed_moments() || is_updated_in_chunks(parameter);
}

void OptimizerStateStorage::make_block_groups() {
  std::map<std::tuple<ParameterGroup, bool, MasterWeights>, std::vector<size_t>> members_by_group;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const ParameterState& parameter = parameters_[i];
    if (!is_in_block_group(parameter)) continue;
    members_by_group[{parameter.group, parameter.has_compressed_moments(), parameter.master_weights}].push_back(i);
  }
  int64_t max_group_blocks = 0, all_blocks = 0;
  const auto add_group = [&](const ParameterGroup& hyperparameters, std::vector<size_t> members) {
    std::vector<int64_t> elements;
    elements.reserve(members.size());
    for (const size_t member : members) elements.push_back(parameters_[member].weight.numel());
    const BlockLayout layout(elements);
    max_group_blocks = std::max(max_group_blocks, layout.num_blocks());
    all_blocks += layout.num_blocks();
    block_groups_.push_back({hyperparameters, std::move(members), layout});
  };
  for (const auto& [key, members] : members_by_group) {
    std::vector<size_t> group;
    int64_t blocks = 0;
    for (const size_t member : members) {
      const int64_t count = count_blocks(parameters_[member].weight.numel());
      if (blocks + count > kMaxGroupBlocks && !group.empty()) {
        add_group(std::get<0>(key), std::exchange(group, {}));
        blocks = 0;
      }
      group.push_back(member);
      blocks += count;
    }
    add_group(std::get<0>(key), std::move(group));
  }
  max_chunk_blocks_ = compute_max_chunk_blocks(max_group_blocks, all_blocks);
  for (auto& group : block_groups_) {
    if (parameters_[group.parameters.front()].has_compressed_moments())
      group.states = std::make_unique<CompressedStates>(group.layout, state_dtype_, *tables_, memory_);
  }
}

bool OptimizerStateStorage::is_fused(const ParameterState& parameter) const {
  return rules_.get(parameter.group.rule).is_fused(parameter.weight);
}

bool OptimizerStateStorage::compresses_in_chunks() const {
  return std::ranges::any_of(block_groups_, [this](const BlockGroup& group) {
    return group.states && is_updated_in_chunks(parameters_[group.parameters.front()]);
  });
}

bool OptimizerStateStorage::rounds_stochastically() const {
  return state_dtype_ == OptimizerStateDtype::kBf16 || weight_rounding_.defined();
}

void OptimizerStateStorage::seed_rounding(uint64_t moments_seed, uint64_t weights_seed) {
  if (state_dtype_ == OptimizerStateDtype::kBf16) tables_->random.set_current_seed(moments_seed);
  if (weight_rounding_.defined()) weight_rounding_.set_current_seed(weights_seed);
}

std::vector<UpdateGroup> OptimizerStateStorage::make_update_groups(const GradientBuckets& buckets,
                                                                   const at::Tensor& step_counters) const {
  // Tensors with moments or masters of another type need another launch of a fused kernel.
  std::map<std::tuple<ParameterGroup, bool, MasterWeights>, UpdateGroup> groups_by_key;
  const auto add = [&](size_t i, UpdateTensor tensor) {
    const ParameterState& parameter = parameters_[i];
    UpdateGroup& group = groups_by_key[{parameter.group, parameter.has_compressed_moments(), parameter.master_weights}];
    group.hyperparameters = parameter.group;
    group.is_fused = is_fused(parameter);
    group.tensors.push_back(std::move(tensor));
  };
  const auto is_updated = [&](size_t i) {
    return buckets.has_gradient(i) && parameters_[i].has_local_elements() && !is_updated_in_chunks(parameters_[i]);
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_updated(i) || parameters_[i].has_compressed_moments()) continue;
    UpdateTensor tensor = make_update_tensor(i, buckets, step_counters);
    tensor.moments = parameters_[i].moments;
    add(i, std::move(tensor));
  }
  for (const auto& block_group : block_groups_) {
    for (size_t member = 0; block_group.states && member < block_group.parameters.size(); ++member) {
      const size_t i = block_group.parameters[member];
      if (!is_updated(i)) continue;
      UpdateTensor tensor = make_update_tensor(i, buckets, step_counters);
      for (const auto& [name, values] : block_group.states->state(member))
        (name.ends_with("absmax") ? tensor.absmax : tensor.moments).push_back(values);
      add(i, std::move(tensor));
    }
  }
  std::vector<UpdateGroup> groups;
  groups.reserve(groups_by_key.size());
  for (auto& [key, group] : groups_by_key) groups.push_back(std::move(group));
  add_chunks(groups, buckets, step_counters);
  return groups;
}

UpdateTensor OptimizerStateStorage::make_update_tensor(size_t i, const GradientBuckets& buckets,
                                                       const at::Tensor& step_counters) const {
  const ParameterState& parameter = parameters_[i];
  const bool has_fp32_weight = parameter.weight.scalar_type() == at::kFloat;
  return {.master = parameter.master,
          .gradient = buckets.get_local_gradient_sum(i).view(parameter.weight.sizes()),
          .weight = has_fp32_weight ? at::Tensor() : parameter.weight,
          .low_bits = parameter.low_bits,
          .steps = step_counters.select(0, static_cast<int64_t>(i)),
          .parameter_index = static_cast<uint32_t>(i)};
}

void OptimizerStateStorage::add_chunks(std::vector<UpdateGroup>& groups, const GradientBuckets& buckets,
                                       const at::Tensor& step_counters) const {
  ChunkContents contents;
  for (const auto& block_group : block_groups_) {
    const ParameterState& parameter = parameters_[block_group.parameters.front()];
    if (!is_updated_in_chunks(parameter)) continue;
    if (block_group.states) contents.state_dtype = state_dtype_;
    contents.has_masters |= parameter.master_weights != MasterWeights::kFp32;
  }
  if (contents.state_dtype == OptimizerStateDtype::kFp32 && !contents.has_masters) return;
  const ChunkBuffers buffers(contents, max_chunk_blocks_, options_);
  for (const auto& block_group : block_groups_) {
    const ParameterState& parameter = parameters_[block_group.parameters.front()];
    if (!is_updated_in_chunks(parameter)) continue;
    std::vector<bool> has_gradients;
    for (const size_t i : block_group.parameters) has_gradients.push_back(buckets.has_gradient(i));
    for (auto& chunk : block_group.layout.make_chunks(has_gradients, buffers)) {
      UpdateGroup group{.hyperparameters = block_group.hyperparameters,
                        .compressed_states = block_group.states.get(),
                        .master_weights = parameter.master_weights};
      for (const auto& slice : chunk.slices)
        group.tensors.push_back(make_update_slice(block_group, chunk, slice, buckets, step_counters));
      group.chunk = std::make_shared<const Chunk>(std::move(chunk));
      groups.push_back(std::move(group));
    }
  }
}

/// Returns a slice of a parameter, with what is not in fp32 in the buffers of the chunk.
UpdateTensor OptimizerStateStorage::make_update_slice(const BlockGroup& group, const Chunk& chunk,
                                                      const ChunkSlice& slice, const GradientBuckets& buckets,
                                                      const at::Tensor& step_counters) const {
  const size_t i = group.parameters[slice.tensor];
  const auto narrow = [&slice](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.view(-1).narrow(0, slice.first, slice.count) : tensor;
  };
  UpdateTensor tensor = make_update_tensor(i, buckets, step_counters);
  tensor.gradient = narrow(tensor.gradient);
  if (tensor.master.defined()) {
    tensor.master = narrow(tensor.master);
  } else {
    tensor.master = chunk.get_master(slice);
    tensor.weight = narrow(tensor.weight);
    tensor.low_bits = narrow(tensor.low_bits);
    tensor.scratch = chunk.get_scratch(slice);
  }
  if (group.states) {
    tensor.moments = {chunk.get_first_moment(slice), chunk.get_second_moment(slice)};
  } else {
    for (const at::Tensor& moment : parameters_[i].moments) tensor.moments.push_back(narrow(moment));
  }
  return tensor;
}

void OptimizerStateStorage::expand_chunk(const UpdateGroup& group) const {
  if (group.compressed_states != nullptr) group.compressed_states->decompress(*group.chunk);
  if (group.master_weights == MasterWeights::kFp32) return;
  for (const auto& tensor : group.tensors) {
    if (group.master_weights == MasterWeights::kSplit) {
      nn::join_values_out(tensor.master, tensor.weight, tensor.low_bits, tensor.scratch);
    } else {
      at::Tensor(tensor.master).copy_(tensor.weight);
    }
  }
}

void OptimizerStateStorage::compress_chunk(const UpdateGroup& group, const at::Tensor& skipped) {
  if (group.compressed_states != nullptr) group.compressed_states->compress(*group.chunk, skipped);
  if (group.master_weights == MasterWeights::kFp32) return;
  for (const auto& tensor : group.tensors) {
    if (group.master_weights == MasterWeights::kSplit) {
      nn::split_values(tensor.master, tensor.weight, tensor.low_bits, tensor.scratch);
    } else {
      nn::round_values_stochastically(tensor.master, tensor.weight, tensor.scratch, weight_rounding_);
    }
  }
}

std::vector<OptimizerStateTensor> OptimizerStateStorage::collect_tensors() const {
  std::vector<OptimizerStateTensor> tensors;
  for (const auto& parameter : parameters_) {
    if (!parameter.has_local_elements()) continue;
    const auto names = rules_.get(parameter.group.rule).moment_names();
    for (size_t moment = 0; moment < parameter.moments.size(); ++moment) {
      OptimizerStateTensor tensor = make_master_state_tensor(parameter);
      tensor.name = fmt::format("{}.{}", names[moment], parameter.name);
      tensor.values = {memory::view_on_host(parameter.moments[moment])};
      tensor.is_master = false;
      tensors.push_back(std::move(tensor));
    }
    if (parameter.has_master()) tensors.push_back(make_master_state_tensor(parameter));
  }
  for (const auto& group : block_groups_) {
    for (size_t i = 0; group.states && i < group.parameters.size(); ++i) {
      const ParameterState& parameter = parameters_[group.parameters[i]];
      if (!parameter.has_local_elements()) continue;
      for (auto& [prefix, values] : group.states->state(i)) {
        // A moment has one value per element, an absmax one per block.
        const int64_t values_per_block = values.dim() == 2 ? values.size(1) : 1;
        tensors.push_back({.name = fmt::format("{}.{}", prefix, parameter.name),
                           .values = {memory::view_on_host(values)},
                           .first = parameter.range.first / kShardAlignment * values_per_block,
                           .total = count_blocks(parameter.parameter.numel()) * values_per_block,
                           .is_sharded = true,
                           .parameter = &parameter});
      }
    }
  }
  return tensors;
}

void OptimizerStateStorage::copy_masters_to_weights() const {
  std::vector<at::Tensor> weights, masters;
  for (const auto& parameter : parameters_) {
    if (!parameter.has_fp32_copy()) continue;
    weights.push_back(parameter.weight);
    masters.push_back(parameter.master);
  }
  if (!weights.empty()) at::_foreach_copy_(weights, masters);
}

}  // namespace vlmtrain::engine
