#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "vlmtrain/kernels/dropout.h"

namespace vlmtrain::nn {

/// Rows of a packed stream that stay together however a batch is cut, such as a sample's tokens or a tile's patches:
/// what is dropped of them follows from their own seed.
struct DropoutSegment {
  uint64_t seed = 0;
  int64_t row_share = 1;  ///< of the rows of a stream, in proportion to the other units'

  bool operator==(const DropoutSegment&) const = default;
};

using DropoutSegments = std::shared_ptr<const std::vector<DropoutSegment>>;

/// What runs on the calling thread while the guard lives works on streams of these units, in this order. `recompute`
/// remembers them for the second run.
class DropoutScope {
 public:
  explicit DropoutScope(std::vector<DropoutSegment> segments);
  explicit DropoutScope(DropoutSegments segments);
  ~DropoutScope();
  DropoutScope(const DropoutScope&) = delete;
  DropoutScope& operator=(const DropoutScope&) = delete;

  /// Of the innermost scope; null outside all.
  static const DropoutSegments& current();

 private:
  DropoutSegments outer_;
};

/// Sets elements of x [rows, columns] to zero with this probability and divides the others by 1 − probability. Which
/// ones is a function of the unit's seed, the `layer` (another number for each place that drops), the row within the
/// unit and the column: not of other units or of what else was drawn. Own kernels and ATen's draw different ones.
/// REQUIRES: a scope whose units divide the rows without a remainder.
at::Tensor segment_dropout(const at::Tensor& x, double probability, uint64_t layer);

/// What readers of one x [rows, columns] keep of it, who drop independently of each other: as above, with the reader's
/// number beside row and column; one reader keeps what segment_dropout does. Records no gradients.
class IndependentDropouts {
 public:
  /// Nobody drops.
  IndependentDropouts() = default;
  /// Draws where x lies. REQUIRES: as segment_dropout.
  IndependentDropouts(const at::Tensor& x, int64_t consumers, double probability, uint64_t layer);

  bool is_active() const { return num_consumers_ > 0; }
  /// Own kernels draw again what is kept whenever it is asked for; else masks() hold it.
  bool regenerates_masks() const { return is_active() && !masks_.defined(); }

  /// Takes away, or gives back, what memory of the device it holds: bool [readers, rows, columns]; undefined: none.
  at::Tensor release_masks() { return std::move(masks_); }
  void set_masks(at::Tensor masks) { masks_ = std::move(masks); }

  /// Calls `consume` for each reader with what it has of x: zero where it drops, divided by 1 − probability elsewhere.
  /// Own kernels make that of all readers at once, else it is there for one at a time.
  void apply(const at::Tensor& x, const std::function<void(int64_t consumer, const at::Tensor& output)>& consume) const;

  /// Adds to `sum`, the gradient of x, those of what the readers have of it, which `compute_gradient` says: in `out`
  /// [rows, columns] where it is defined. Rounds once, with ATen's operations once a reader.
  void add_gradients(const at::Tensor& sum,
                     const std::function<at::Tensor(int64_t consumer, const at::Tensor& out)>& compute_gradient) const;

 private:
  kernels::DropoutParams make_kernel_args() const { return {.probability = probability_, .streams = streams_}; }

  int64_t num_consumers_ = 0;
  double probability_ = 0;
  std::vector<kernels::DropoutStream> streams_;
  at::Tensor masks_;
};

}  // namespace vlmtrain::nn
