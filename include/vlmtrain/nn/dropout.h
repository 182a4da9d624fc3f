#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace vlmtrain::nn {

/// Rows of a packed stream that stay together however a batch is cut, such as a sample's tokens or a tile's patches:
/// what is dropped of them follows from their own seed.
struct DropoutUnit {
  uint64_t seed = 0;
  int64_t share = 1;  ///< of the rows of a stream, in proportion to the other units'

  bool operator==(const DropoutUnit&) const = default;
};

using DropoutUnits = std::shared_ptr<const std::vector<DropoutUnit>>;

/// What runs on the calling thread while the guard lives works on streams of these units, in this order. `recompute`
/// remembers them for the second run.
class DropoutScope {
 public:
  explicit DropoutScope(std::vector<DropoutUnit> units);
  explicit DropoutScope(DropoutUnits units);
  ~DropoutScope();
  DropoutScope(const DropoutScope&) = delete;
  DropoutScope& operator=(const DropoutScope&) = delete;

  /// Of the innermost scope; null outside all.
  static const DropoutUnits& current();

 private:
  DropoutUnits outer_;
};

/// Sets elements of x [rows, columns] to zero with this probability and divides the others by 1 − probability. Which
/// ones is a function of the unit's seed, the `layer` (another number for each place that drops), the row within the
/// unit and the column: not of other units or of what else was drawn.
/// REQUIRES: a scope whose units divide the rows without a remainder.
at::Tensor unit_dropout(const at::Tensor& x, double probability, uint64_t layer);

/// What is kept of x by `count` readers that drop independently of each other: bool [count, rows, columns], drawn at
/// once of each unit. As above, with the reader's number beside row and column; one reader keeps what unit_dropout
/// does. REQUIRES: as there.
at::Tensor draw_dropout_masks(const at::Tensor& x, int64_t count, double probability, uint64_t layer);
/// x with a reader's mask: zero where it is false, divided by 1 − probability elsewhere. Records no gradient: that of
/// the result, with the same mask, is x's.
at::Tensor apply_dropout_mask(const at::Tensor& x, const at::Tensor& mask, double probability);
/// y + apply_dropout_mask(x, mask, probability), in place and rounded once.
void add_with_dropout_mask(const at::Tensor& y, const at::Tensor& x, const at::Tensor& mask, double probability);

}  // namespace vlmtrain::nn
