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
#include "vlmtrain/memory/place.h"
#include "vlmtrain/models/recompute_blocks.h"
#include "vlmtrain/nn/parameters.h"
#include "vlmtrain/nn/recompute.h"

namespace vlmtrain::models {

/// How much smaller the projections start that add to the residual stream, two a block, so that its variance does not
/// grow with depth (Radford et al. 2019, GPT-2).
inline double residual_branch_gain(int64_t blocks) {
  return 1.0 / std::sqrt(2.0 * static_cast<double>(blocks));
}

/// Rows that are added to the hidden states behind a block, outside of its recomputation (Meng et al. 2024, arXiv
/// 2406.04334: DeepStack).
struct DeepstackAddition {
  int64_t block = 0;
  at::Tensor rows;      ///< int64 [n], each once
  at::Tensor features;  ///< [n, hidden]; gradients reach it
};

/// What is done with the hidden states between the blocks.
struct HiddenStateOptions {
  std::vector<int64_t> requested{};  ///< blocks whose output is handed out, before anything is added to it
  std::vector<DeepstackAddition> additions{};
};

struct BlockOutputs {
  at::Tensor last{};                    ///< [rows, hidden]
  std::vector<at::Tensor> requested{};  ///< [rows, hidden] for each of HiddenStateOptions::wanted
};

/// The blocks of a tower, which recomputation is applied to from outside: a block only says how it maps its input.
template <class Block>
class BlockList {
 public:
  /// `component` is what a trace counts the blocks' memory as.
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

  /// Runs block after block; the first of them keep only what `recompute` says. `context` (segments, rotary tables)
  /// is copied into the nodes of the backward pass.
  template <class Context>
  BlockOutputs run(at::Tensor hidden, const TowerRecompute& recompute, const Context& context,
                   const HiddenStateOptions& options = {}) const {
    return run_with_contexts(
        std::move(hidden), recompute, [&](int64_t) -> const Context& { return context; }, options);
  }

  /// The same with a context for each block: `get_context`(index of the block).
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
      // The gradients that come from the next block meet at this view, before what was handed out adds its own: the
      // same sums in the same order whether that block is recomputed or not.
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

  /// The backward pass reaches a block's output just before it reads the block.
  void register_backward_use(const at::Tensor& output, const Entry& entry) const {
    output.register_hook([store = store_, first = entry.first_parameter](const at::Tensor& /*gradient*/) {
      store->prepare_block_backward(first);
    });
  }

  void check(const HiddenStateOptions& options) const {
    const auto exists = [this](int64_t block) { return block >= 0 && block < size(); };
    VLMTRAIN_CHECK(std::ranges::all_of(options.requested, exists) &&
                       std::ranges::all_of(options.additions, exists, &DeepstackAddition::block),
                   "hidden states behind a block that is none of {}", size());
  }

  struct Entry {
    std::unique_ptr<Block> block;
    std::vector<at::Tensor> parameters;
    size_t first_parameter, end_parameter;  // of the store
  };
  const nn::ParameterStore* store_;
  memory::Component component_;
  std::vector<Entry> entries_;
};

}  // namespace vlmtrain::models
