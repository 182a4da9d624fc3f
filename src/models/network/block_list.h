#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/allocation_trace.h"
#include "vlmtrain/models/recompute_blocks.h"
#include "vlmtrain/nn/layers/recompute.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// Returns the initial scale of the two projections per block that write to the residual stream, so
/// that its variance does not grow with depth (Radford et al. 2019, GPT-2).
inline double residual_branch_gain(int64_t blocks) {
  return 1.0 / std::sqrt(2.0 * static_cast<double>(blocks));
}

/// Rows added to the hidden states after a block, outside of its recomputation (DeepStack, Meng et
/// al. 2024, arXiv 2406.04334).
struct DeepstackAddition {
  int64_t block = 0;
  at::Tensor rows;      ///< int64 [n], without duplicates
  at::Tensor features;  ///< [n, hidden], differentiable
};

/// The operations on hidden states between blocks.
struct HiddenStateOptions {
  std::vector<int64_t> requested{};  ///< blocks whose output is returned, before additions
  std::vector<DeepstackAddition> additions{};
};

/// The hidden states of a run.
struct BlockOutputs {
  at::Tensor last{};                    ///< [rows, hidden]
  std::vector<at::Tensor> requested{};  ///< [rows, hidden] for each of HiddenStateOptions::requested
};

/// The blocks of a tower, with activation checkpointing applied from outside: a Block only maps its
/// input. Sharded weights of a block are gathered for its passes.
template <class Block>
class BlockList {
 public:
  /// `component` is the memory component of the blocks' allocations.
  template <class Config>
  BlockList(const nn::ParameterScope& scope, int64_t count, const Config& config, memory::Component component)
      : store_(&scope.store()), component_(component) {
    for (int64_t i = 0; i < count; ++i) {
      const size_t first_parameter = scope.store().all().size();
      auto block = std::make_unique<Block>(scope / i, config);
      auto parameters = scope.store().close_block(first_parameter);
      entries_.push_back({std::move(block), std::move(parameters), first_parameter, scope.store().all().size()});
    }
  }

  /// Runs all blocks; the first ones are checkpointed as `recompute` says. `context` (segments,
  /// RoPE tables) is copied into the nodes of the backward pass.
  template <class Context>
  BlockOutputs run(at::Tensor hidden, const TowerRecompute& recompute, const Context& context,
                   const HiddenStateOptions& options = {}) const {
    return run_with_contexts(
        std::move(hidden), recompute, [&](int64_t) -> const Context& { return context; }, options);
  }

  /// The same with get_context(i) as the context of block i.
  template <class GetContext>
  BlockOutputs run_with_contexts(at::Tensor hidden, const TowerRecompute& recompute, const GetContext& get_context,
                                 const HiddenStateOptions& options = {}) const {
    check(options);
    BlockOutputs outputs{.requested = std::vector<at::Tensor>(options.requested.size())};
    for (int64_t i = 0; i < size(); ++i) {
      const Entry& entry = entries_[static_cast<size_t>(i)];
      store_->prepare_block_forward(entry.first_parameter, entry.end_parameter);
      const auto run_block = [block = entry.block.get(), context = get_context(i), i,
                              component = component_](const at::Tensor& x) {
        const memory::BlockScope memory_scope(component, i);
        return (*block)(x, context);
      };
      const bool recomputes = i < recompute.count && c10::GradMode::is_enabled();
      const auto selective = i < recompute.num_selective ? nn::CheckpointMode::kSelective : nn::CheckpointMode::kFull;
      hidden = recomputes ? nn::recompute(run_block, hidden, entry.parameters, selective) : run_block(hidden);
      if (store_->has_block_unsharder() && hidden.requires_grad()) register_backward_use(hidden, entry);
      for (size_t index = 0; index < options.requested.size(); ++index) {
        if (options.requested[index] == i) outputs.requested[index] = hidden;
      }
      // The view collects the gradients of the next block before that of the returned state is
      // added, so the summation order does not depend on recomputation.
      if (std::ranges::find(options.requested, i) != options.requested.end()) hidden = hidden.view_as(hidden);
      for (const auto& addition : options.additions) {
        if (addition.block == i) hidden = hidden.index_add(0, addition.rows, addition.features);
      }
    }
    outputs.last = std::move(hidden);
    return outputs;
  }

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }

 private:
  struct Entry;

  /// Registers the use of the block's weights in backward, which reaches a block's output just
  /// before it reads the block's weights.
  void register_backward_use(const at::Tensor& output, const Entry& entry) const {
    output.register_hook([store = store_, first = entry.first_parameter](const at::Tensor& /*gradient*/) {
      store->prepare_block_backward(first);
    });
  }

  void check(const HiddenStateOptions& options) const {
    const auto exists = [this](int64_t block) { return block >= 0 && block < size(); };
    VLMTRAIN_CHECK(std::ranges::all_of(options.requested, exists) &&
                       std::ranges::all_of(options.additions, exists, &DeepstackAddition::block),
                   "hidden states of a block beyond the {} of the model", size());
  }

  struct Entry {
    std::unique_ptr<Block> block;
    std::vector<at::Tensor> parameters;
    size_t first_parameter, end_parameter;  // in the store
  };
  const nn::ParameterStore* store_;
  memory::Component component_;
  std::vector<Entry> entries_;
};

}  // namespace vlmtrain::models
