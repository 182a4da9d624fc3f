#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "vlmtrain/nn/parameters.h"
#include "vlmtrain/nn/recompute.h"

namespace vlmtrain::models {

/// How much smaller the projections start that add to the residual stream, two a block, so that its variance does not
/// grow with depth (Radford et al. 2019, GPT-2).
inline double residual_branch_gain(int64_t blocks) {
  return 1.0 / std::sqrt(2.0 * static_cast<double>(blocks));
}

/// The blocks of a tower, which recomputation is applied to from outside: a block only says how it maps its input.
template <class Block>
class BlockList {
 public:
  template <class Config>
  BlockList(const nn::ParameterScope& scope, int64_t count, const Config& config) {
    for (int64_t i = 0; i < count; ++i) {
      const size_t first_parameter = scope.store().all().size();
      auto block = std::make_unique<Block>(scope / i, config);
      entries_.push_back({std::move(block), scope.store().tensors_from(first_parameter)});
    }
  }

  /// Runs block after block; the first `recomputed` of them keep only their input. `context` (segments, rotary tables)
  /// is copied into the nodes of the backward pass.
  template <class Context>
  at::Tensor run(at::Tensor hidden, int64_t recomputed, const Context& context) const {
    for (const auto& entry : entries_) {
      const Block* block = entry.block.get();
      if (recomputed-- > 0 && c10::GradMode::is_enabled()) {
        hidden = nn::recompute([block, context](const at::Tensor& x) { return (*block)(x, context); }, hidden,
                               entry.parameters);
      } else {
        hidden = (*block)(hidden, context);
      }
    }
    return hidden;
  }

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }

 private:
  struct Entry {
    std::unique_ptr<Block> block;
    std::vector<at::Tensor> parameters;
  };
  std::vector<Entry> entries_;
};

}  // namespace vlmtrain::models
