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
struct BlockAddition {
  int64_t block = 0;
  at::Tensor rows;      ///< int64 [n], each once
  at::Tensor features;  ///< [n, hidden]; gradients reach it
};

/// What is done with the hidden states between the blocks.
struct BetweenBlocks {
  std::vector<int64_t> wanted{};  ///< blocks whose output is handed out, before anything is added to it
  std::vector<BlockAddition> additions{};
};

struct BlockOutputs {
  at::Tensor last{};                 ///< [rows, hidden]
  std::vector<at::Tensor> wanted{};  ///< [rows, hidden] for each of BetweenBlocks::wanted
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

  /// Runs block after block; the first of them keep only what `recomputed` says. `context` (segments, rotary tables)
  /// is copied into the nodes of the backward pass.
  template <class Context>
  BlockOutputs run(at::Tensor hidden, const TowerRecompute& recomputed, const Context& context,
                   const BetweenBlocks& between = {}) const {
    return run_each(
        std::move(hidden), recomputed, [&](int64_t) -> const Context& { return context; }, between);
  }

  /// The same with a context for each block: `context_of`(index of the block).
  template <class ContextOf>
  BlockOutputs run_each(at::Tensor hidden, const TowerRecompute& recomputed, const ContextOf& context_of,
                        const BetweenBlocks& between = {}) const {
    check(between);
    BlockOutputs outputs{.wanted = std::vector<at::Tensor>(between.wanted.size())};
    for (int64_t i = 0; i < size(); ++i) {
      const Entry& entry = entries_[static_cast<size_t>(i)];
      store_->use_block(entry.first_parameter, entry.end_parameter);
      const auto run_block = [block = entry.block.get(), context = context_of(i), i,
                              component = component_](const at::Tensor& x) {
        const memory::InBlock place(component, i);
        return (*block)(x, context);
      };
      const bool recomputes = i < recomputed.count && c10::GradMode::is_enabled();
      const auto keeps =
          i < recomputed.attention_kept ? nn::RecomputeKeeps::kInputAndAttention : nn::RecomputeKeeps::kInput;
      hidden = recomputes ? nn::recompute(run_block, hidden, entry.parameters, keeps) : run_block(hidden);
      if (store_->are_blocks_brought() && hidden.requires_grad()) use_again_before_backward(hidden, entry);
      for (size_t place = 0; place < between.wanted.size(); ++place) {
        if (between.wanted[place] == i) outputs.wanted[place] = hidden;
      }
      // The gradients that come from the next block meet at this view, before what was handed out adds its own: the
      // same sums in the same order whether that block is recomputed or not.
      if (std::ranges::find(between.wanted, i) != between.wanted.end()) hidden = hidden.view_as(hidden);
      for (const auto& addition : between.additions) {
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
  void use_again_before_backward(const at::Tensor& output, const Entry& entry) const {
    output.register_hook([store = store_, first = entry.first_parameter](const at::Tensor& /*gradient*/) {
      store->use_block_again(first);
    });
  }

  void check(const BetweenBlocks& between) const {
    const auto exists = [this](int64_t block) { return block >= 0 && block < size(); };
    VLMTRAIN_CHECK(std::ranges::all_of(between.wanted, exists) &&
                       std::ranges::all_of(between.additions, exists, &BlockAddition::block),
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
