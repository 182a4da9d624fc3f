#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "vlmtrain/kernels/elementwise.h"

namespace vlmtrain::nn {

/// Rows of a packed stream that stay together in every split of a batch, such as the tokens of a
/// sample or the patches of a tile. Their dropout depends on their own seed only.
struct DropoutSegment {
  uint64_t seed = 0;
  int64_t row_share = 1;  ///< relative number of rows; the rows of a stream divide in these proportions

  bool operator==(const DropoutSegment&) const = default;
};

/// The segments of a stream, shared by the layers that read it.
using DropoutSegments = std::shared_ptr<const std::vector<DropoutSegment>>;

/// A guard that declares the segments of the streams processed on this thread while it lives.
/// recompute() restores the scope for the second run.
class DropoutScope {
 public:
  explicit DropoutScope(std::vector<DropoutSegment> segments);
  explicit DropoutScope(DropoutSegments segments);
  ~DropoutScope();
  DropoutScope(const DropoutScope&) = delete;
  DropoutScope& operator=(const DropoutScope&) = delete;

  /// Returns the segments of the innermost scope; null outside of scopes.
  static const DropoutSegments& current();

 private:
  DropoutSegments outer_;
};

/// Zeroes elements of x [rows, columns] with this probability and divides the others by 1 −
/// probability. The choice is a function of the segment's seed, `layer` (unique to each dropout
/// layer), the row within the segment, and the column. It does not depend on other segments or
/// earlier draws. Custom kernels and ATen draw different masks. REQUIRES: a scope whose segments
/// divide the rows without remainder.
at::Tensor segment_dropout(const at::Tensor& x, double probability, uint64_t layer);

/// Independent dropouts of one x [rows, columns] for several consumers. Masks are those of
/// segment_dropout() with the consumer's index as an additional coordinate; a single consumer gets
/// the mask of segment_dropout(). Records no gradients.
class IndependentDropouts {
 public:
  /// Creates an inactive object.
  IndependentDropouts() = default;
  /// Draws on the device of x. REQUIRES: as segment_dropout().
  IndependentDropouts(const at::Tensor& x, int64_t consumers, double probability, uint64_t layer);

  /// Returns whether anything is dropped.
  bool is_active() const { return num_consumers_ > 0; }
  /// Returns whether custom kernels recompute the masks on each use; else they are stored.
  bool regenerates_masks() const { return is_active() && !masks_.defined(); }

  /// Releases or restores the stored masks, bool [consumers, rows, columns]; undefined if none are
  /// stored. Autograd keeps them between the passes.
  at::Tensor release_masks() { return std::move(masks_); }
  void set_masks(at::Tensor masks) { masks_ = std::move(masks); }

  /// Calls `consume` for each consumer with its output of x. Custom kernels compute the outputs of
  /// all consumers at once; otherwise only one exists at a time.
  void apply(const at::Tensor& x, const std::function<void(int64_t consumer, const at::Tensor& output)>& consume) const;

  /// Adds to `sum`, the gradient of x, the masked gradients of all consumers. `compute_gradient`
  /// returns the gradient of a consumer's output, written to `out` [rows, columns] where that is
  /// defined. Custom kernels round once; ATen rounds once per consumer.
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
