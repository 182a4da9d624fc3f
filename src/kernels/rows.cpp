#include "vlmtrain/kernels/rows.h"

#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>

#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {

namespace {

/// Marks tensors whose rows have a border. Views of a tensor do not have its metadata.
struct BorderMark final : c10::BackendMeta {};

}  // namespace

bool has_dense_rows(const at::Tensor& x) {
  return x.is_contiguous() || (x.dim() == 2 && x.stride(1) == 1 && x.stride(0) >= x.size(1));
}

at::Tensor make_dense_rows(const at::Tensor& x) {
  return !x.defined() || has_dense_rows(x) ? x : x.contiguous();
}

int64_t get_row_stride(const at::Tensor& x) {
  if (!x.defined()) return 0;
  return x.is_contiguous() ? x.size(-1) : x.stride(0);
}

at::Tensor allocate_bordered_rows(at::IntArrayRef sizes, int64_t border_columns, const at::TensorOptions& options) {
  if (border_columns == 0) return at::empty(sizes, options);
  VLMTRAIN_CHECK(sizes.size() == 2, "only rows of a matrix have a border");
  const at::Tensor all = at::empty({sizes[0], sizes[1] + border_columns}, options);
  // Not a view, because autograd Functions return it.
  at::Tensor x = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(all.storage()), all.key_set(), all.dtype());
  x.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, all.strides());
  x.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<BorderMark>());
  return x;
}

at::Tensor allocate_rows_like(const at::Tensor& x) {
  if (x.is_contiguous() || x.stride(0) >= 2 * x.size(1)) return at::empty(x.sizes(), x.options());
  return allocate_bordered_rows(x.sizes(), x.stride(0) - x.size(1), x.options());
}

int64_t get_border_columns(const at::Tensor& x) {
  const bool has_border = dynamic_cast<BorderMark*>(x.unsafeGetTensorImpl()->get_backend_meta()) != nullptr;
  return has_border ? x.stride(0) - x.size(1) : 0;
}

at::Tensor view_with_border(const at::Tensor& x) {
  return x.as_strided({x.size(0), x.size(1) + get_border_columns(x)}, x.strides());
}

}  // namespace vlmtrain::kernels
