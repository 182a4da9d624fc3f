#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "vlmtrain/memory/memory_tag.h"
#include "vlmtrain/nn/layers/recompute.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// The interface of image encoders for mask prediction.
class MaskImageEncoder {
 public:
  MaskImageEncoder() = default;
  virtual ~MaskImageEncoder() = default;
  MaskImageEncoder(const MaskImageEncoder&) = delete;
  MaskImageEncoder& operator=(const MaskImageEncoder&) = delete;

  /// Encodes normalized pixels [images, 3, side, side] of the model's dtype to features [images ·
  /// (side / kMaskFeatureStride)², channels], image by image and row by row. SamVit requires the
  /// configured side; TinyVit takes any multiple of kMaskFeatureStride. The first `recomputed_blocks`
  /// blocks save only their input for the backward pass.
  virtual at::Tensor operator()(const at::Tensor& pixels, int64_t recomputed_blocks) const = 0;
  /// Returns the number of blocks that can be recomputed.
  virtual int64_t num_blocks() const = 0;
};

/// A sequence of blocks of several types, which may be recomputed in the backward pass. Unlike in a
/// BlockList, weights are not sharded, since a mask encoder is small and does not run in each step.
class RecomputedBlocks {
 public:
  using Block = std::function<at::Tensor(const at::Tensor&)>;

  /// Adds the Block that make() returns. make() must add the Block's parameters to `store`.
  template <class Make>
  void add_block(nn::ParameterStore& store, const Make& make) {
    const size_t first = store.all().size();
    Entry entry{.block = make(), .parameters = {}};
    for (size_t i = first; i < store.all().size(); ++i) {
      if (nn::is_trainable(store.all()[i].component)) entry.parameters.push_back(store.all()[i].tensor);
    }
    entries_.push_back(std::move(entry));
  }

  /// Runs all blocks in order. The first `num_recomputed` save only their input for the backward
  /// pass.
  at::Tensor run(at::Tensor x, int64_t num_recomputed) const {
    for (int64_t i = 0; i < size(); ++i) {
      const Entry& entry = entries_[static_cast<size_t>(i)];
      const auto run_block = [&block = entry.block, i](const at::Tensor& input) {
        const memory::BlockScope memory_scope(memory::Component::kMasks, i);
        return block(input);
      };
      const bool is_recomputed = i < num_recomputed && c10::GradMode::is_enabled();
      x = is_recomputed ? nn::run_checkpointed(run_block, x, entry.parameters) : run_block(x);
    }
    return x;
  }

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }

 private:
  struct Entry {
    Block block;
    std::vector<at::Tensor> parameters;
  };
  std::vector<Entry> entries_;
};

}  // namespace vlmtrain::models
