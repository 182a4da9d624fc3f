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

/// Returns whether the moments of the parameter are compressed.
bool compresses_moments(OptimizerStateDtype state_dtype, const nn::Parameter& parameter) {
  // As in bitsandbytes (min_8bit_size).
  constexpr int64_t kMinCompressedElements = 4096;
  if (state_dtype == OptimizerStateDtype::kFp32 || parameter.elements() < kMinCompressedElements) return false;
  return state_dtype != OptimizerStateDtype::k8Bit || !parameter.is_embedding;
}

/// Returns the part of a parameter that this rank updates, as a view of the parameter or of its
/// shard.
at::Tensor get_local_weight(const nn::Parameter& parameter, const ElementRange& range, const Shard& shard,
                            bool is_elementwise) {
  if (parameter.has_sharded_gradient()) return parameter.sharded_block->view_local_values(parameter.index_in_block);
  const at::Tensor full_weight = parameter.tensor.detach();
  const bool is_whole = shard.covers_all() || (!is_elementwise && range.count > 0);
  return is_whole ? full_weight : full_weight.view(-1).narrow(0, range.first, range.count);
}

}  // namespace

OptimizerStateTensor make_master_state_tensor(const ParameterState& parameter) {
  return {.name = "master." + parameter.name,
          .values = parameter.master,
          .first = parameter.range.first,
          .total = parameter.parameter.numel(),
          .is_sharded = true,
          .parameter = &parameter,
          .is_master = true};
}

OptimizerStateStorage::OptimizerStateStorage(const nn::ParameterStore& store, const GradientBuckets& buckets,
                                             const OptimizerSettings& settings, const UpdateRules& rules)
    : rules_(rules), state_dtype_(settings.state_dtype) {
  const auto fp32_options = store.options().dtype(at::kFloat);
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
    // The master shares the storage of an fp32 weight.
    ParameterState state{parameter.name, group, parameter.tensor, range, weight, weight.to(at::kFloat)};
    if (!compresses_moments(settings.state_dtype, parameter)) {
      for (size_t moment = 0; moment < rules.get(group.rule).moment_names().size(); ++moment)
        state.moments.push_back(at::zeros(weight.sizes(), fp32_options));
    }
    parameters_.push_back(std::move(state));
  }
  if (settings.state_dtype != OptimizerStateDtype::kFp32) make_compressed_groups(fp32_options);
}

void OptimizerStateStorage::make_compressed_groups(const at::TensorOptions& options) {
  std::map<ParameterGroup, std::vector<size_t>> members_by_group;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].has_compressed_moments()) members_by_group[parameters_[i].group].push_back(i);
  }
  int64_t max_group_blocks = 0, all_blocks = 0;
  std::vector<std::vector<int64_t>> elements;
  for (const auto& [hyperparameters, members] : members_by_group) {
    int64_t blocks = kMaxGroupBlocks + 1;  // blocks of the group so far; too many, so the first tensor starts a group
    for (const size_t member : members) {
      const int64_t size = parameters_[member].master.numel();
      blocks += CompressedStates::count_blocks(size);
      all_blocks += CompressedStates::count_blocks(size);
      if (blocks > kMaxGroupBlocks) {
        blocks = CompressedStates::count_blocks(size);
        compressed_groups_.push_back({.hyperparameters = hyperparameters});
        elements.emplace_back();
      }
      compressed_groups_.back().parameters.push_back(member);
      elements.back().push_back(size);
      max_group_blocks = std::max(max_group_blocks, blocks);
    }
  }
  chunk_context_ = std::make_unique<ChunkContext>(state_dtype_, max_group_blocks, all_blocks, options);
  for (size_t i = 0; i < compressed_groups_.size(); ++i)
    compressed_groups_[i].states = std::make_unique<CompressedStates>(elements[i], *chunk_context_);
}

bool OptimizerStateStorage::is_fused(const ParameterState& parameter) const {
  return rules_.get(parameter.group.rule).is_fused(parameter.weight);
}

bool OptimizerStateStorage::compresses_in_chunks() const {
  return std::ranges::any_of(compressed_groups_, [this](const CompressedGroup& group) {
    return !is_fused(parameters_[group.parameters.front()]);
  });
}

std::vector<UpdateGroup> OptimizerStateStorage::make_update_groups(const GradientBuckets& buckets,
                                                                   const at::Tensor& step_counters) const {
  // Tensors with moments of another type need another launch of a fused kernel.
  std::map<std::pair<ParameterGroup, bool>, UpdateGroup> groups_by_key;
  const auto add = [&](size_t i, UpdateTensor tensor) {
    const ParameterState& parameter = parameters_[i];
    UpdateGroup& group = groups_by_key[{parameter.group, parameter.has_compressed_moments()}];
    group.hyperparameters = parameter.group;
    group.is_fused = is_fused(parameter);
    group.tensors.push_back(std::move(tensor));
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const ParameterState& parameter = parameters_[i];
    if (!buckets.has_gradient(i) || !parameter.has_local_elements() || parameter.has_compressed_moments()) continue;
    UpdateTensor tensor = make_update_tensor(i, buckets, step_counters);
    tensor.moments = parameter.moments;
    add(i, std::move(tensor));
  }
  for (const auto& compressed : compressed_groups_) {
    for (size_t member = 0; member < compressed.parameters.size(); ++member) {
      const size_t i = compressed.parameters[member];
      if (!buckets.has_gradient(i) || !parameters_[i].has_local_elements() || !is_fused(parameters_[i])) continue;
      UpdateTensor tensor = make_update_tensor(i, buckets, step_counters);
      for (const auto& [name, values] : compressed.states->state(member))
        (name.ends_with("absmax") ? tensor.absmax : tensor.moments).push_back(values);
      add(i, std::move(tensor));
    }
  }
  std::vector<UpdateGroup> groups;
  groups.reserve(groups_by_key.size());
  for (auto& [key, group] : groups_by_key) groups.push_back(std::move(group));
  if (compresses_in_chunks()) add_chunks(groups, buckets, step_counters);
  return groups;
}

UpdateTensor OptimizerStateStorage::make_update_tensor(size_t i, const GradientBuckets& buckets,
                                                       const at::Tensor& step_counters) const {
  const ParameterState& parameter = parameters_[i];
  return {.master = parameter.master,
          .gradient = buckets.get_local_gradient_sum(i).view(parameter.master.sizes()),
          .weight = parameter.has_master() ? parameter.weight : at::Tensor(),
          .steps = step_counters.select(0, static_cast<int64_t>(i)),
          .parameter_index = static_cast<uint32_t>(i)};
}

void OptimizerStateStorage::add_chunks(std::vector<UpdateGroup>& groups, const GradientBuckets& buckets,
                                       const at::Tensor& step_counters) const {
  const ChunkBuffers buffers = chunk_context_->make_buffers();
  for (const auto& compressed : compressed_groups_) {
    std::vector<bool> has_gradients;
    for (const size_t i : compressed.parameters) has_gradients.push_back(buckets.has_gradient(i));
    for (auto& chunk : compressed.states->make_chunks(has_gradients, buffers)) {
      UpdateGroup group{.hyperparameters = compressed.hyperparameters};
      for (const auto& slice : chunk.slices) {
        const auto narrow = [&slice](const at::Tensor& tensor) {
          return tensor.view(-1).narrow(0, slice.first, slice.count);
        };
        UpdateTensor tensor = make_update_tensor(compressed.parameters[slice.tensor], buckets, step_counters);
        tensor.master = narrow(tensor.master);
        tensor.gradient = narrow(tensor.gradient);
        tensor.moments = {chunk.get_first_moment(slice), chunk.get_second_moment(slice)};
        group.tensors.push_back(std::move(tensor));
      }
      group.compressed_states = compressed.states.get();
      group.chunk = std::make_shared<const Chunk>(std::move(chunk));
      groups.push_back(std::move(group));
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
      tensor.values = parameter.moments[moment];
      tensor.is_master = false;
      tensors.push_back(std::move(tensor));
    }
    if (parameter.has_master()) tensors.push_back(make_master_state_tensor(parameter));
  }
  for (const auto& compressed : compressed_groups_) {
    for (size_t i = 0; i < compressed.parameters.size(); ++i) {
      const ParameterState& parameter = parameters_[compressed.parameters[i]];
      if (!parameter.has_local_elements()) continue;
      for (auto& [prefix, values] : compressed.states->state(i)) {
        // A moment has one value per element, an absmax one per block.
        const int64_t values_per_block = values.dim() == 2 ? values.size(1) : 1;
        tensors.push_back({.name = fmt::format("{}.{}", prefix, parameter.name),
                           .values = values,
                           .first = parameter.range.first / kShardAlignment * values_per_block,
                           .total = CompressedStates::count_blocks(parameter.parameter.numel()) * values_per_block,
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
    if (!parameter.has_master()) continue;
    weights.push_back(parameter.weight);
    masters.push_back(parameter.master);
  }
  if (!weights.empty()) at::_foreach_copy_(weights, masters);
}

}  // namespace vlmtrain::engine
