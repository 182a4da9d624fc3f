#include "nn/layers/bordered_weights.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "nn/adjacent_tensors.h"
#include "nn/round_up.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/weights/row_alignment.h"

namespace vlmtrain::nn {

namespace {

/// Returns rows [first_row, first_row + rows) and columns [first_column, …) of a matrix as an alias.
at::Tensor alias_block(const at::Tensor& matrix, int64_t first_row, int64_t rows, int64_t first_column,
                       int64_t columns) {
  return make_alias(matrix, matrix.storage_offset() + first_row * matrix.stride(0) + first_column, {rows, columns},
                    {matrix.stride(0), 1});
}

/// Returns whether `tensor` begins at row `row` and column `column` of `matrix`.
bool is_block(const at::Tensor& tensor, const at::Tensor& matrix, int64_t row, int64_t column) {
  return tensor.is_alias_of(matrix) && tensor.stride(0) == matrix.stride(0) &&
         tensor.storage_offset() == matrix.storage_offset() + row * matrix.stride(0) + column;
}

}  // namespace

BorderedWeights::BorderedWeights(const LinearGroupShape& shape, bool has_weights, const at::TensorOptions& options)
    : shape_(shape), input_columns_(align_width(shape.in_features, options)) {
  int64_t columns = 0;
  for (size_t i = 0; i < shape.out_features.size(); ++i) {
    first_columns_.push_back(columns);
    columns += round_up(shape.out_features[i], shape.column_alignment);
    const int64_t rank = shape.ranks[i];
    if (rank == 0) continue;
    sections_.push_back({.linear = i, .first = border_columns_, .columns = align_width(rank, options), .rank = rank});
    border_columns_ += sections_.back().columns;
  }
  if (!has_weights) {
    a_ = at::zeros({border_columns_, input_columns_}, options);
    b_ = at::zeros({columns, border_columns_}, options);
    return;
  }
  const at::Tensor all = at::zeros({columns + border_columns_, input_columns_ + border_columns_}, options);
  w_ = alias_block(all, 0, columns, 0, input_columns_);
  w_and_b_ = alias_block(all, 0, columns, 0, input_columns_ + border_columns_);
  w_and_a_ = alias_block(all, 0, columns + border_columns_, 0, input_columns_);
  a_ = alias_block(all, columns, border_columns_, 0, input_columns_);
  b_ = alias_block(all, 0, columns, input_columns_, border_columns_);
}

at::Tensor BorderedWeights::weight_storage(size_t linear) const {
  return alias_block(w_, first_columns_[linear], shape_.out_features[linear], 0, shape_.in_features);
}

LoraAdapter::Storage BorderedWeights::adapter_storage(size_t linear) const {
  const Section& section = find_section(linear);
  return {.a = alias_block(a_, section.first, section.rank, 0, shape_.in_features),
          .b = alias_block(b_, first_columns_[linear], shape_.out_features[linear], section.first, section.rank)};
}

bool BorderedWeights::holds(const std::vector<const LoraAdapter*>& adapters) const {
  for (size_t i = 0; i < sections_.size(); ++i) {
    const Section& section = sections_[i];
    if (!is_block(adapters[i]->a(), a_, section.first, 0) ||
        !is_block(adapters[i]->b(), b_, first_columns_[section.linear], section.first))
      return false;
  }
  return true;
}

at::Tensor BorderedWeights::slice_border(const at::Tensor& hidden, size_t adapter) const {
  return hidden.narrow(1, sections_[adapter].first, sections_[adapter].columns);
}

at::Tensor BorderedWeights::padded_a(size_t adapter) const {
  return a_.narrow(0, sections_[adapter].first, sections_[adapter].columns);
}

const BorderedWeights::Section& BorderedWeights::find_section(size_t linear) const {
  const auto section = std::ranges::find(sections_, linear, &Section::linear);
  VLMTRAIN_CHECK(section != sections_.end(), "Linear {} of the group has no adapter", linear);
  return *section;
}

}  // namespace vlmtrain::nn
