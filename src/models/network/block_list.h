#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/memory_tag.h"
#include "vlmtrain/models/model_settings.h"
#include "vlmtrain/nn/layers/recompute.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// Returns the initial scale of the two projections per block that write to the residual stream, so
/// that its variance does not grow with depth (Radford et al. 2019, GPT-2).
inline double compute_residual_gain(int64_t blocks) {
  return 1.0 / std::sqrt(2.0 * static_cast<double>(blocks));
}

/// Features added to rows of the hidden states after a block (DeepStack, Meng et al. 2024, arXiv
/// 2406.04334). Not part of the block's recomputation.
struct DeepstackAddition {
  int64_t block = 0;    ///< index of the block
  at::Tensor rows;      ///< int64 [n], indices of rows, without duplicates
  at::Tensor features;  ///< [n, hidden], differentiable
};

/// The operations on hidden states between blocks.
struct HiddenStateOptions {
  std::vector<int64_t> output_block_indices{};  ///< blocks whose outputs are returned, before `deepstack_additions`
  std::vector<DeepstackAddition> deepstack_additions{};
};

/// Tensors that blocks exchange besides the hidden states. They are differentiable, too: inputs of
/// each block that are computed before all blocks, or outputs of a block that later blocks read,
/// such as keys and values. The functions are called in the order of the blocks.
struct ExchangedTensors {
  /// Returns the inputs of block i after the hidden states.
  std::function<std::vector<at::Tensor>(int64_t block)> get_inputs;
  /// Takes the outputs of block i after the hidden states.
  std::function<void(int64_t block, std::span<const at::Tensor> outputs)> set_outputs;
};

/// The results of BlockList::run().
struct BlockListOutputs {
  at::Tensor last_hidden_state{};  ///< output of the last block with its additions, [rows, hidden]
  std::vector<at::Tensor> intermediate_hidden_states{};  ///< outputs [rows, hidden] of the blocks in HiddenStateOptions
};

/// The blocks of a tower. Applies activation checkpointing and unshards the weights of each block
/// for its forward and backward pass, so a Block need not know of either. A Block is constructed
/// from (scope, config) and maps x [rows, hidden] with `block(x, context)` to the same shape. A Block
/// that exchanges tensors with others maps a vector of tensors to a vector instead; the first of each
/// are the hidden states. The parameter store of `scope` must outlive this object.
template <class Block>
class BlockList {
 public:
  /// Builds `count` blocks in the scopes 0, 1, …. `config` is the configuration of all blocks, or a
  /// function that returns that of block i. `component` is the memory component of the blocks'
  /// allocations.
  template <class Config>
  BlockList(const nn::ParameterScope& scope, int64_t count, const Config& config, memory::Component component)
      : store_(&scope.store()), component_(component) {
    for (int64_t i = 0; i < count; ++i) {
      const size_t first_parameter_index = scope.store().all().size();
      auto block = make_block(scope / i, config, i);
      auto parameters = scope.store().finish_block(first_parameter_index);
      entries_.push_back({std::move(block), std::move(parameters), first_parameter_index, scope.store().all().size()});
    }
  }

  /// Runs all blocks on `hidden` [rows, hidden]. The first `recompute.num_recomputed_blocks` blocks
  /// are recomputed in the backward pass; the first `recompute.num_selective_blocks` of these keep
  /// their attention outputs. `context` is the input that all blocks share, such as segments and
  /// RoPE tables. It is copied into the nodes of the backward pass.
  template <class Context>
  BlockListOutputs run(at::Tensor hidden, const TowerRecomputeCounts& recompute, const Context& context,
                       const HiddenStateOptions& options = {}) const {
    return run_with_contexts(
        std::move(hidden), recompute, [&](int64_t) -> const Context& { return context; }, options);
  }

  /// Does the same with get_context(i) as the context of block i, and with `exchanged_tensors` if
  /// blocks have such inputs and outputs.
  template <class GetContext>
  BlockListOutputs run_with_contexts(at::Tensor hidden, const TowerRecomputeCounts& recompute,
                                     const GetContext& get_context, const HiddenStateOptions& options = {},
                                     const ExchangedTensors* exchanged_tensors = nullptr) const {
    check_hidden_state_options(options);
    BlockListOutputs outputs{.intermediate_hidden_states =
                                 std::vector<at::Tensor>(options.output_block_indices.size())};
    for (int64_t i = 0; i < size(); ++i) {
      const Entry& entry = entries_[static_cast<size_t>(i)];
      store_->prepare_block_forward(entry.first_parameter_index, entry.end_parameter);
      const auto run_block = [block = entry.block.get(), context = get_context(i), i,
                              component = component_](const std::vector<at::Tensor>& inputs) {
        const memory::BlockScope memory_scope(component, i);
        return call_block(*block, inputs, context);
      };
      std::vector<at::Tensor> block_inputs{std::move(hidden)};
      if (exchanged_tensors != nullptr)
        std::ranges::move(exchanged_tensors->get_inputs(i), std::back_inserter(block_inputs));
      const bool is_recomputed = i < recompute.num_recomputed_blocks && c10::GradMode::is_enabled();
      const auto checkpoint_mode =
          i < recompute.num_selective_blocks ? nn::CheckpointMode::kSelective : nn::CheckpointMode::kFull;
      std::vector<at::Tensor> block_outputs =
          is_recomputed ? nn::run_checkpointed(run_block, block_inputs, entry.parameters, checkpoint_mode,
                                               store_->activation_offloader())
                        : run_block(block_inputs);
      block_inputs.clear();
      hidden = std::move(block_outputs.front());
      if (exchanged_tensors != nullptr) exchanged_tensors->set_outputs(i, std::span(block_outputs).subspan(1));
      if (store_->has_block_unsharder() && hidden.requires_grad()) register_backward_hook(hidden, entry);
      for (size_t index = 0; index < options.output_block_indices.size(); ++index) {
        if (options.output_block_indices[index] == i) outputs.intermediate_hidden_states[index] = hidden;
      }
      // The view collects the gradients of the next block before that of the returned state is
      // added, so the summation order does not depend on recomputation.
      if (std::ranges::find(options.output_block_indices, i) != options.output_block_indices.end())
        hidden = hidden.view_as(hidden);
      for (const auto& addition : options.deepstack_additions) {
        if (addition.block == i) hidden = hidden.index_add(0, addition.rows, addition.features);
      }
    }
    outputs.last_hidden_state = std::move(hidden);
    return outputs;
  }

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }

 private:
  struct Entry;

  template <class Config>
  static std::unique_ptr<Block> make_block(const nn::ParameterScope& scope, const Config& config, int64_t block) {
    if constexpr (std::invocable<const Config&, int64_t>) {
      return std::make_unique<Block>(scope, config(block));
    } else {
      return std::make_unique<Block>(scope, config);
    }
  }

  template <class Context>
  static std::vector<at::Tensor> call_block(const Block& block, const std::vector<at::Tensor>& inputs,
                                            const Context& context) {
    if constexpr (std::invocable<const Block&, const std::vector<at::Tensor>&, const Context&>) {
      return block(inputs, context);
    } else {
      return {block(inputs.front(), context)};
    }
  }

  /// Unshards the block's weights in the backward pass, which reaches a block's hidden states just
  /// before it reads the block's weights.
  void register_backward_hook(const at::Tensor& output, const Entry& entry) const {
    output.register_hook([store = store_, first = entry.first_parameter_index](const at::Tensor& /*gradient*/) {
      store->prepare_block_backward(first);
    });
  }

  void check_hidden_state_options(const HiddenStateOptions& options) const {
    const auto exists = [this](int64_t block) { return block >= 0 && block < size(); };
    VLMTRAIN_CHECK(std::ranges::all_of(options.output_block_indices, exists) &&
                       std::ranges::all_of(options.deepstack_additions, exists, &DeepstackAddition::block),
                   "hidden states of a block that does not exist: the model has {} blocks", size());
  }

  struct Entry {
    std::unique_ptr<Block> block;
    std::vector<at::Tensor> parameters;
    size_t first_parameter_index, end_parameter;  // in the store
  };
  const nn::ParameterStore* store_;
  memory::Component component_;
  std::vector<Entry> entries_;
};

}  // namespace vlmtrain::models
