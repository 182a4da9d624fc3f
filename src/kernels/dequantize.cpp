#include "vlmtrain/kernels/dequantize.h"

#include <algorithm>

#include "kernels/launch.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {

void nf4_dequantize(const at::Tensor& result, const Nf4Weights& blocks) {
  const auto num_weights = std::ssize(blocks.first_super_blocks);
  VLMTRAIN_CHECK(num_weights > 0 && num_weights <= kMaxNf4WeightsPerLaunch,
                 "cannot dequantize {} NF4 weights in one launch; the number must be 1 to {}", num_weights,
                 kMaxNf4WeightsPerLaunch);
  if (result.numel() == 0) return;
  Nf4DequantizeArgs args{.element = get_element_type(result),
                         .super_blocks = blocks.nested_absmax.numel(),
                         .packed = blocks.packed_indices.const_data_ptr<uint8_t>(),
                         .absmax = blocks.absmax.const_data_ptr<uint8_t>(),
                         .nested_absmax = blocks.nested_absmax.const_data_ptr<float>(),
                         .nested_offset = blocks.nested_offset.const_data_ptr<float>(),
                         .absmax_codes = blocks.absmax_codebook.const_data_ptr<float>(),
                         .code_stride = blocks.absmax_codebook.stride(0),
                         .result = result.mutable_data_ptr(),
                         .values = {},
                         .num_weights = static_cast<int>(num_weights),
                         .first_super_block = {}};
  std::copy_n(blocks.values.const_data_ptr<float>(), std::size(args.values), std::begin(args.values));
  std::ranges::copy(blocks.first_super_blocks, std::begin(args.first_super_block));
  // Without nested_offset and absmax_codebook, which are small.
  KernelLaunch("vlmtrain::nf4_dequantize", {blocks.packed_indices, blocks.absmax, blocks.nested_absmax}, {result})(
      launchers().nf4_dequantize, args);
}

void int8_dequantize(const at::Tensor& result, const at::Tensor& values, const at::Tensor& row_absmax, double step) {
  if (result.numel() == 0) return;
  KernelLaunch("vlmtrain::int8_dequantize", {values, row_absmax}, {result})(
      launchers().int8_dequantize, Int8DequantizeArgs{.element = get_element_type(result),
                                                      .rows = values.size(0),
                                                      .columns = values.size(1),
                                                      .values = values.const_data_ptr<int8_t>(),
                                                      .row_absmax = row_absmax.const_data_ptr<float>(),
                                                      .step = static_cast<float>(step),
                                                      .result = result.mutable_data_ptr()});
}

}  // namespace vlmtrain::kernels
