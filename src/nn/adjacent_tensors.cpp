#include "nn/adjacent_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>

#include "nn/round_up.h"

namespace vlmtrain::nn {

at::Tensor make_alias(const at::Tensor& all, int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(all.storage()), all.key_set(), all.dtype());
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

std::vector<at::Tensor> allocate_adjacent_tensors(const std::vector<int64_t>& rows, at::IntArrayRef sizes,
                                                  const at::TensorOptions& options, int64_t row_alignment) {
  int64_t num_rows = 0;
  for (const int64_t count : rows) num_rows += round_up(count, row_alignment);
  std::vector<int64_t> shape{num_rows};
  shape.insert(shape.end(), sizes.begin(), sizes.end());
  const at::Tensor all = at::empty(shape, options);
  std::vector<at::Tensor> tensors;
  int64_t first = 0;
  for (const int64_t count : rows) {
    shape.front() = count;
    tensors.push_back(make_alias(all, first * all.stride(0), shape, all.strides()));
    const int64_t end = first + count;
    first += round_up(count, row_alignment);
    if (first > end) all.narrow(0, end, first - end).zero_();
  }
  return tensors;
}

std::vector<at::Tensor> allocate_adjacent_matrices(const std::vector<int64_t>& rows, int64_t columns,
                                                   int64_t row_stride, const at::TensorOptions& options,
                                                   int64_t row_alignment) {
  std::vector<at::Tensor> matrices;
  for (const at::Tensor& wide : allocate_adjacent_tensors(rows, {row_stride}, options, row_alignment)) {
    if (row_stride > columns) wide.narrow(1, columns, row_stride - columns).zero_();
    matrices.push_back(make_alias(wide, wide.storage_offset(), {wide.size(0), columns}, wide.strides()));
  }
  return matrices;
}

at::Tensor view_adjacent_tensors(const std::vector<at::Tensor>& tensors, int64_t row_alignment) {
  if (tensors.empty()) return {};
  const at::NoGradGuard no_gradients;
  at::Tensor first = tensors.front().detach();
  const int64_t row = first.stride(0);
  int64_t rows = 0;
  bool has_zero_rows = false;
  for (const at::Tensor& tensor : tensors) {
    const bool is_adjacent = tensor.unsafeGetTensorImpl()->unsafe_storage().is_alias_of(first.storage()) &&
                             tensor.stride(0) == row && tensor.storage_offset() == first.storage_offset() + rows * row;
    if (!is_adjacent) return {};
    rows += round_up(tensor.size(0), row_alignment);
    has_zero_rows |= tensor.size(0) % row_alignment != 0;
  }
  if (tensors.size() == 1 && !has_zero_rows) return first;
  // In another allocation, to which the tensors were moved, other values follow.
  const auto bytes = static_cast<size_t>(rows * row) * first.element_size();
  if (has_zero_rows && (first.storage_offset() != 0 || first.storage().nbytes() != bytes)) return {};
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes.front() = rows;
  return at::as_strided(first, sizes, first.strides(), first.storage_offset());
}

}  // namespace vlmtrain::nn
