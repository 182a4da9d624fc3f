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
/// unit and the column: not of other units or of what else was drawn. Own kernels and ATen's draw different ones.
/// REQUIRES: a scope whose units divide the rows without a remainder.
at::Tensor unit_dropout(const at::Tensor& x, double probability, uint64_t layer);

/// What readers of one x [rows, columns] keep of it, who drop independently of each other: as above, with the reader's
/// number beside row and column; one reader keeps what unit_dropout does. Records no gradients.
class ReadersDropout {
 public:
  /// Nobody drops.
  ReadersDropout() = default;
  /// Draws where x lies. REQUIRES: as unit_dropout.
  ReadersDropout(const at::Tensor& x, int64_t readers, double probability, uint64_t layer);

  bool drops() const { return readers_ > 0; }
  /// Own kernels draw again what is kept whenever it is asked for; else masks() hold it.
  bool draws_again() const { return drops() && !masks_.defined(); }

  /// Takes away, or gives back, what memory of the device it holds: bool [readers, rows, columns]; undefined: none.
  at::Tensor take_masks() { return std::move(masks_); }
  void give_masks(at::Tensor masks) { masks_ = std::move(masks); }

  /// Calls `use` for each reader with what it has of x: zero where it drops, divided by 1 − probability elsewhere.
  /// Own kernels make that of all readers at once, else it is there for one at a time.
  void drop(const at::Tensor& x, const std::function<void(int64_t reader, const at::Tensor& dropped)>& use) const;

  /// Adds to `sum`, the gradient of x, those of what the readers have of it, which `gradient_of` says: in `place`
  /// [rows, columns] where it is defined. Rounds once, with ATen's operations once a reader.
  void add_gradients(const at::Tensor& sum,
                     const std::function<at::Tensor(int64_t reader, const at::Tensor& place)>& gradient_of) const;

 private:
  kernels::DropoutDraw draw() const { return {.probability = probability_, .streams = streams_}; }

  int64_t readers_ = 0;
  double probability_ = 0;
  std::vector<kernels::DropoutStream> streams_;
  at::Tensor masks_;
};

}  // namespace vlmtrain::nn
