#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "vlmtrain/kernels/dropout.h"

namespace vlmtrain::nn {

/// Consecutive rows of a packed stream that are never separated when a batch is split into
/// micro-batches, such as the tokens of a sample or the patches of a tile. Their dropout depends on
/// their own seed only, not on the split.
struct DropoutSegment {
  uint64_t seed = 0;
  int64_t row_weight = 1;  ///< relative number of rows, > 0; a stream's rows are divided in these proportions

  bool operator==(const DropoutSegment&) const = default;
};

/// The segments of a stream, in order, shared by the layers that read it.
using DropoutSegments = std::shared_ptr<const std::vector<DropoutSegment>>;

/// A guard that declares the segments of the streams that this thread processes during its
/// lifetime. Scopes nest. run_checkpointed() restores the scope for the second run.
class DropoutScope {
 public:
  explicit DropoutScope(std::vector<DropoutSegment> segments);
  explicit DropoutScope(DropoutSegments segments);
  ~DropoutScope();
  DropoutScope(const DropoutScope&) = delete;
  DropoutScope& operator=(const DropoutScope&) = delete;

  /// Returns the segments of this thread's innermost scope; null outside of scopes.
  static const DropoutSegments& current();

 private:
  DropoutSegments outer_segments_;
};

/// Zeroes elements of x [rows, columns] with this probability and divides the others by 1 −
/// probability. The choice is a function of the segment's seed, `layer` (unique to each dropout
/// layer), the row within the segment, and the column. It does not depend on other segments or
/// earlier draws. Custom kernels and ATen draw different masks. `probability` is in [0, 1). Throws
/// InternalError outside of a DropoutScope, or if the rows cannot be divided by the segments'
/// row_weight without remainder.
at::Tensor segment_dropout(const at::Tensor& x, double probability, uint64_t layer);

/// Independent dropouts of one x [rows, columns] for several consumers, such as the LoRA adapters
/// that share an input. Masks are drawn as in segment_dropout(), with the consumer's index as an
/// additional coordinate; a single consumer gets the mask of segment_dropout(). Records no
/// gradients.
class IndependentDropouts {
 public:
  /// Creates an inactive object, without consumers.
  IndependentDropouts() = default;
  /// Draws the masks on the device of x. Arguments and errors as in segment_dropout().
  IndependentDropouts(const at::Tensor& x, int64_t consumers, double probability, uint64_t layer);

  /// Returns whether anything is dropped.
  bool is_active() const { return num_consumers_ > 0; }
  /// Returns whether custom kernels recompute the masks on each use; else they are stored.
  bool regenerates_masks() const { return is_active() && !masks_.defined(); }

  /// Releases or restores the stored masks, bool [consumers, rows, columns]; undefined if none are
  /// stored. Autograd functions save the masks between the forward and the backward pass.
  at::Tensor take_masks() { return std::move(masks_); }
  void set_masks(at::Tensor masks) { masks_ = std::move(masks); }

  /// Calls `consume` for each consumer with x after its dropout, [rows, columns]. Custom kernels
  /// compute the outputs of all consumers at once; otherwise only one exists at a time. REQUIRES:
  /// is_active().
  void apply(const at::Tensor& x, const std::function<void(int64_t consumer, const at::Tensor& output)>& consume) const;

  /// Adds the masked gradients of all consumers to `sum`, the gradient of x. `compute_gradient`
  /// returns the gradient of a consumer's output, [rows, columns]; if `out` is defined, it must
  /// write the gradient there. Custom kernels round once; ATen rounds once per consumer. REQUIRES:
  /// is_active().
  void add_consumer_gradients(
      const at::Tensor& sum,
      const std::function<at::Tensor(int64_t consumer, const at::Tensor& out)>& compute_gradient) const;

 private:
  kernels::DropoutParams make_dropout_params() const {
    return {.probability = probability_, .streams = dropout_streams_};
  }

  int64_t num_consumers_ = 0;
  double probability_ = 0;
  std::vector<kernels::DropoutStream> dropout_streams_;
  at::Tensor masks_;
};

}  // namespace vlmtrain::nn
