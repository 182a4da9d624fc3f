#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "vlmtrain/memory/place.h"
#include "vlmtrain/nn/parameters.h"
#include "vlmtrain/nn/recompute.h"

namespace vlmtrain::models {

/// What makes features of the pictures that masks are drawn in.
class MaskEncoder {
 public:
  /// Pixels of a picture's side to one feature.
  static constexpr int64_t kStride = 16;

  MaskEncoder() = default;
  virtual ~MaskEncoder() = default;
  MaskEncoder(const MaskEncoder&) = delete;
  MaskEncoder& operator=(const MaskEncoder&) = delete;

  /// Normalised pixels [pictures, 3, side, side] of the model's dtype → features, picture by picture and row by row:
  /// [pictures · (side / kStride)², channels]. TinyViT takes any side that is a multiple of kStride. The first
  /// `recomputed_blocks` keep only their input.
  virtual at::Tensor operator()(const at::Tensor& pixels, int64_t recomputed_blocks) const = 0;
  virtual int64_t blocks() const = 0;
};

/// Blocks of any kinds, one behind the other, of which the first may run again in the backward pass. Unlike BlockList's
/// every rank holds all of their weights: a mask encoder is small beside a language model, and not every step runs it.
class RecomputedBlocks {
 public:
  using Block = std::function<at::Tensor(const at::Tensor&)>;

  /// Adds what `make()` returns, a Block whose parameters it has added to `store`.
  template <class Make>
  void add(nn::ParameterStore& store, const Make& make) {
    const size_t first = store.all().size();
    Entry entry{.block = make(), .parameters = {}};
    for (size_t i = first; i < store.all().size(); ++i) {
      if (nn::is_trainable(store.all()[i].component)) entry.parameters.push_back(store.all()[i].tensor);
    }
    entries_.push_back(std::move(entry));
  }

  /// The first `num_recomputed` keep only their input.
  at::Tensor run(at::Tensor x, int64_t num_recomputed) const {
    for (int64_t i = 0; i < size(); ++i) {
      const Entry& entry = entries_[static_cast<size_t>(i)];
      const auto run_block = [&block = entry.block, i](const at::Tensor& input) {
        const memory::BlockScope memory_scope(memory::Component::kMasks, i);
        return block(input);
      };
      const bool recomputes = i < num_recomputed && c10::GradMode::is_enabled();
      x = recomputes ? nn::recompute(run_block, x, entry.parameters) : run_block(x);
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
