#include "vlmtrain/kernels/dequantize.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "kernels/launch.h"
#include "kernels/self_test.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {

void nf4_dequantize(const at::Tensor& result, const Nf4Weights& blocks) {
  const auto num_weights = std::ssize(blocks.weights);
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
                         .columns = blocks.columns,
                         .result_columns = result.size(1),
                         .result_stride = result.stride(0),
                         .result = result.mutable_data_ptr(),
                         .values = {},
                         .num_weights = static_cast<int>(num_weights),
                         .first_super_block = {},
                         .first_row = {},
                         .elements = {}};
  std::copy_n(blocks.values.const_data_ptr<float>(), std::size(args.values), std::begin(args.values));
  for (int i = 0; i < args.num_weights; ++i) {
    const Nf4Weights::Weight& weight = blocks.weights[static_cast<size_t>(i)];
    args.first_super_block[i] = weight.first_super_block;
    args.first_row[i] = weight.first_row;
    args.elements[i] = weight.rows * args.columns;
    // The kernel divides indices of elements in 32 bits.
    VLMTRAIN_CHECK(args.elements[i] <= std::numeric_limits<int32_t>::max(),
                   "an NF4 weight has {} values, the limit is {}", args.elements[i],
                   std::numeric_limits<int32_t>::max());
  }
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
                                                      .result_columns = result.size(1),
                                                      .result_stride = result.stride(0),
                                                      .result = result.mutable_data_ptr()});
}

namespace reference {

void nf4_dequantize(const at::Tensor& result, const Nf4Weights& blocks) {
  const at::Tensor decoded_absmax =
      blocks.absmax_codebook.index_select(0, blocks.absmax.to(at::kLong)).view({-1, kNf4NestedBlockSize});
  at::Tensor absmax = decoded_absmax * blocks.nested_absmax.unsqueeze(1);
  const auto weights = std::ssize(blocks.weights);
  for (int64_t i = 0; i < weights; ++i) {
    const auto index = static_cast<size_t>(i);
    const int64_t first = blocks.weights[index].first_super_block;
    const int64_t end = i + 1 < weights ? blocks.weights[index + 1].first_super_block : absmax.size(0);
    absmax.narrow(0, first, end - first).add_(blocks.nested_offset[i]);
  }
  const at::Tensor bytes = blocks.packed_indices.to(at::kLong);
  const at::Tensor indices = at::stack({bytes.div(16, "floor"), bytes.remainder(16)}, 1).view(-1);
  const at::Tensor values =
      blocks.values.to(bytes.device()).index_select(0, indices).view({-1, kNf4BlockSize}).mul_(absmax.view({-1, 1}));
  for (const Nf4Weights::Weight& weight : blocks.weights) {
    const at::Tensor padded_rows = result.narrow(0, weight.first_row, weight.rows).zero_();
    const at::Tensor rows = padded_rows.narrow(1, 0, blocks.columns);
    rows.copy_(
        values.view(-1).narrow(0, weight.first_super_block * kNf4SuperBlockSize, rows.numel()).view(rows.sizes()));
  }
}

at::Tensor int8_dequantize(const at::Tensor& values, const at::Tensor& row_absmax, double step, at::ScalarType dtype) {
  return (values * row_absmax.unsqueeze(1)).mul_(step).to(dtype);
}

}  // namespace reference

std::vector<ComparedTensors> test_nf4(RandomInputs& inputs, const KernelTestSizes& sizes) {
  // A weight of two superblocks and one of the others, of widths that allow packs of 8, of 4 and of
  // single values; the last superblock of each is not full.
  std::vector<ComparedTensors> compared_tensors;
  for (const int64_t columns : {256, 252, 243}) {
    const int64_t rows[] = {2 * kNf4SuperBlockSize / columns, (sizes.super_blocks - 2) * kNf4SuperBlockSize / columns};
    const Nf4Weights blocks{.packed_indices = inputs.make_byte_tensor({sizes.super_blocks * kNf4SuperBlockSize / 2}),
                            .absmax = inputs.make_byte_tensor({sizes.super_blocks * kNf4NestedBlockSize}),
                            .nested_absmax = inputs.make_fp32_tensor({sizes.super_blocks}),
                            .nested_offset = inputs.make_fp32_tensor({2}),
                            .absmax_codebook = inputs.make_fp32_tensor({256}),
                            .values = inputs.make_fp32_tensor({16}).to(at::kCPU),
                            .columns = columns,
                            .weights = {{0, 1, rows[0]}, {2, rows[0] + 4, rows[1]}}};
    // Nothing is written between the weights. The last columns are zero.
    const at::Tensor actual = inputs.make_tensor({rows[0] + rows[1] + 5, columns + 8}), expected = actual.clone();
    nf4_dequantize(actual, blocks);
    reference::nf4_dequantize(expected, blocks);
    compared_tensors.push_back({actual, expected});
  }
  return compared_tensors;
}

std::vector<ComparedTensors> test_int8(RandomInputs& inputs, const KernelTestSizes& sizes) {
  constexpr double kInt8Step = 1.0 / 127;
  std::vector<ComparedTensors> compared_tensors;
  for (const int64_t columns : sizes.columns) {
    const at::Tensor values = inputs.make_fp32_tensor({sizes.rows, columns}).mul_(60).to(at::kChar),
                     absmax = inputs.make_fp32_tensor({sizes.rows});
    for (const int64_t padding : {0, 8}) {
      const at::Tensor actual = inputs.make_tensor({sizes.rows, columns + padding});
      int8_dequantize(actual, values, absmax, kInt8Step);
      const at::Tensor expected = reference::int8_dequantize(values, absmax, kInt8Step, actual.scalar_type());
      compared_tensors.push_back({actual, at::constant_pad_nd(expected, {0, padding})});
    }
  }
  return compared_tensors;
}

}  // namespace vlmtrain::kernels
