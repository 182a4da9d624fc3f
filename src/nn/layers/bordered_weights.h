#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "vlmtrain/nn/layers/linear.h"

namespace vlmtrain::nn {

/// The sizes of a group of Linears.
struct LinearGroupShape {
  int64_t in_features;
  std::vector<int64_t> out_features;
  std::vector<int64_t> ranks;  // of the adapters; 0: no adapter
  int64_t column_alignment;    // see LinearGroup
};

/// Storage for the weights and adapters of a group of Linears, in which one product computes
/// x Wᵀ + h Bᵀ = [x, h] [W, B]ᵀ with h = scale · x Aᵀ, and one product its gradient
/// [dy, dh] [W; A] with dh = scale · dy B. The matrix is
///
///     W  B     [columns of the group, aligned in_features + border_columns]
///     A  0     [border_columns, same]
///
/// Each adapter has align_width(rank) columns of the border. In the rows of other Linears they are
/// zero, as are the columns and rows beyond in_features, out_features and rank. Quantized weights are
/// not in the matrix: A and B then have storage of their own in the same order, and W and B are
/// brought together for each product.
class BorderedWeights {
 public:
  /// Allocates zeros. `has_weights`: whether the matrix contains W.
  BorderedWeights(const LinearGroupShape& shape, bool has_weights, const at::TensorOptions& options);

  /// Returns storage [out_features[i], in_features] for a weight. REQUIRES: has_weights.
  at::Tensor weight_storage(size_t linear) const;
  /// Returns storage for an adapter. REQUIRES: its rank is not 0.
  LoraAdapter::Storage adapter_storage(size_t linear) const;

  /// Returns whether the adapters, in the order of the Linears, are still in this storage.
  /// ShardedOptimizerSync moves them.
  bool holds(const std::vector<const LoraAdapter*>& adapters) const;

  /// Returns the number of columns of h.
  int64_t border_columns() const { return border_columns_; }
  /// Returns the number of columns of the input, in_features aligned.
  int64_t input_columns() const { return input_columns_; }

  // The matrices below have no gradients.

  /// Returns W [columns, input_columns()] and [W, B]; undefined if W is quantized.
  const at::Tensor& w() const { return w_; }
  const at::Tensor& w_and_b() const { return w_and_b_; }
  /// Returns [W; A], [columns + border_columns(), input_columns()]; undefined if W is quantized.
  const at::Tensor& w_and_a() const { return w_and_a_; }
  /// Returns the A of all adapters, [border_columns(), input_columns()].
  const at::Tensor& a() const { return a_; }
  /// Returns the B of all adapters, [columns, border_columns()].
  const at::Tensor& b() const { return b_; }

  /// Returns the columns of h that belong to an adapter, a view [rows, align_width(rank)].
  at::Tensor slice_border(const at::Tensor& hidden, size_t adapter) const;
  /// Returns A of an adapter with the rows of zeros after it, [align_width(rank), input_columns()].
  at::Tensor padded_a(size_t adapter) const;

 private:
  /// The part of the border that belongs to an adapter.
  struct Section {
    size_t linear;
    int64_t first, columns, rank;
  };

  const Section& find_section(size_t linear) const;

  LinearGroupShape shape_;
  std::vector<int64_t> first_columns_;  // of the Linears
  std::vector<Section> sections_;       // of the adapters
  int64_t border_columns_ = 0;
  int64_t input_columns_;
  at::Tensor w_, w_and_b_, w_and_a_, a_, b_;
};

}  // namespace vlmtrain::nn
