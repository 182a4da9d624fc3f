#include "nn/adjacent_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>

#include <functional>
#include <numeric>

namespace vlmtrain::nn {

std::vector<at::Tensor> allocate_adjacent_tensors(const std::vector<int64_t>& rows, at::IntArrayRef sizes,
                                                  const at::TensorOptions& options) {
  std::vector<int64_t> shape{std::reduce(rows.begin(), rows.end())};
  shape.insert(shape.end(), sizes.begin(), sizes.end());
  const at::Tensor all = at::empty(shape, options);
  const int64_t row = std::reduce(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
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
    first += count;
  }
  return tensors;
}

at::Tensor view_adjacent_tensors(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return {};
  const at::NoGradGuard no_gradients;
  at::Tensor first = tensors.front().detach();
  if (tensors.size() == 1) return first;
  int64_t elements = 0;
  int64_t rows = 0;
  for (const at::Tensor& tensor : tensors) {
    const bool is_adjacent = tensor.unsafeGetTensorImpl()->unsafe_storage().is_alias_of(first.storage()) &&
                             tensor.storage_offset() == first.storage_offset() + elements;
    if (!is_adjacent) return {};
    elements += tensor.numel();
    rows += tensor.size(0);
  }
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes.front() = rows;
  return at::as_strided(first, sizes, first.strides(), first.storage_offset());
}

}  // namespace vlmtrain::nn
