#include "nn/adjacent_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>

#include <functional>
#include <numeric>

#include "nn/round_up.h"

namespace vlmtrain::nn {

namespace {

int64_t get_elements_per_row(at::IntArrayRef row_sizes) {
  return std::reduce(row_sizes.begin(), row_sizes.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

std::vector<at::Tensor> allocate_adjacent_tensors(const std::vector<int64_t>& rows, at::IntArrayRef sizes,
                                                  const at::TensorOptions& options, int64_t row_alignment) {
  std::vector<int64_t> shape{0};
  for (const int64_t count : rows) shape.front() += round_up(count, row_alignment);
  shape.insert(shape.end(), sizes.begin(), sizes.end());
  const at::Tensor all = at::empty(shape, options);
  const int64_t row = get_elements_per_row(sizes);
  std::vector<at::Tensor> tensors;
  int64_t first = 0;
  for (const int64_t count : rows) {
    shape.front() = count;
    // Views would share a version counter: an in-place change of one would count as a change of
    // all.
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(all.storage()), all.key_set(), all.dtype());
    tensor.unsafeGetTensorImpl()->set_storage_offset(first * row);
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
    tensors.push_back(std::move(tensor));
    const int64_t end = first + count;
    first += round_up(count, row_alignment);
    if (first > end) all.narrow(0, end, first - end).zero_();
  }
  return tensors;
}

at::Tensor view_adjacent_tensors(const std::vector<at::Tensor>& tensors, int64_t row_alignment) {
  if (tensors.empty()) return {};
  const at::NoGradGuard no_gradients;
  at::Tensor first = tensors.front().detach();
  const int64_t row = get_elements_per_row(first.sizes().slice(1));
  int64_t rows = 0;
  bool has_zero_rows = false;
  for (const at::Tensor& tensor : tensors) {
    const bool is_adjacent = tensor.unsafeGetTensorImpl()->unsafe_storage().is_alias_of(first.storage()) &&
                             tensor.storage_offset() == first.storage_offset() + rows * row;
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
