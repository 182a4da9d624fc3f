#include "vlmtrain/kernels/adamw.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

#include "kernels/launch.h"
#include "kernels/self_test.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {

namespace {

MomentFormat get_moment_format(const at::Tensor& moments) {
  switch (moments.scalar_type()) {
    case at::kFloat:
      return MomentFormat::kFp32;
    case at::kBFloat16:
      return MomentFormat::kBf16;
    case at::kByte:
      return MomentFormat::k8Bit;
    default:
      throw InternalError("AdamW's kernel does not support the data type of the moments");
  }
}

MasterFormat get_master_format(const AdamWParameter& parameter) {
  if (parameter.master.defined()) return MasterFormat::kFp32;
  VLMTRAIN_CHECK(
      parameter.weight.defined() && parameter.weight.scalar_type() == at::kBFloat16 && parameter.weight.is_contiguous(),
      "AdamW's kernel updates only dense bf16 weights without masters");
  return parameter.low_bits.defined() ? MasterFormat::kSplit : MasterFormat::kStochastic;
}

/// Returns the memory of the master in its format.
void* get_master_data(const AdamWParameter& parameter) {
  if (parameter.master.defined()) return parameter.master.mutable_data_ptr<float>();
  return parameter.low_bits.defined() ? parameter.low_bits.mutable_data_ptr<int16_t>() : nullptr;
}

const float* get_fp32_data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

bool is_pack_aligned(const void* pointer) {
  constexpr uintptr_t kPackBytes = 16;
  return reinterpret_cast<uintptr_t>(pointer) % kPackBytes == 0;
}

/// Sets the fields that describe the 16-bit weight.
void set_weight(AdamWTensor& result, const at::Tensor& weight) {
  if (!weight.defined()) return;
  result.weight = weight.mutable_data_ptr();
  if (weight.is_contiguous()) return;
  VLMTRAIN_CHECK(weight.dim() == 2 && weight.stride(1) == 1 && weight.numel() <= std::numeric_limits<uint32_t>::max() &&
                     weight.stride(0) <= std::numeric_limits<uint32_t>::max(),
                 "AdamW's kernel does not support the strides of a weight");
  result.weight_columns = static_cast<uint32_t>(weight.size(1));
  result.weight_stride = static_cast<uint32_t>(weight.stride(0));
}

/// Returns whether the rows of the weight begin at whole packs and consist of them.
bool has_aligned_rows(const AdamWTensor& tensor) {
  constexpr uint32_t kPackElements = 8;
  return is_pack_aligned(tensor.weight) && tensor.weight_columns % kPackElements == 0 &&
         tensor.weight_stride % kPackElements == 0;
}

AdamWTensor make_adamw_tensor(const AdamWParameter& tensor, MomentFormat format) {
  AdamWTensor result{.master = get_master_data(tensor),
                     .gradient = tensor.gradient.const_data_ptr<float>(),
                     .weight = nullptr,
                     .weight_columns = 0,
                     .weight_stride = 0,
                     .moments = {tensor.moments[0].mutable_data_ptr(), tensor.moments[1].mutable_data_ptr()},
                     .absmax = {},
                     .steps = tensor.steps.const_data_ptr<float>(),
                     .count = tensor.gradient.numel(),
                     .tensor_id = tensor.tensor_id,
                     .is_aligned = false};
  set_weight(result, tensor.weight);
  if (format == MomentFormat::k8Bit) {
    for (size_t i = 0; i < 2; ++i) result.absmax[i] = tensor.absmax[i].mutable_data_ptr<float>();
  }
  // bf16 and 8-bit moments are stored in whole blocks and therefore always aligned.
  result.is_aligned = is_pack_aligned(result.master) && is_pack_aligned(result.gradient) && has_aligned_rows(result) &&
                      (format != MomentFormat::kFp32 || std::ranges::all_of(result.moments, is_pack_aligned));
  return result;
}

/// Returns the arguments that all launches of an update share.
AdamWArgs make_shared_args(const AdamWParameter& first, const AdamWStep& step) {
  AdamWArgs args{};
  args.moments = get_moment_format(first.moments[0]);
  args.masters = get_master_format(first);
  args.weight_type = first.weight.defined() ? get_element_type(first.weight) : ElementType::kBFloat16;
  args.learning_rate = step.learning_rate;
  args.beta1 = step.beta1;
  args.beta2 = step.beta2;
  // The update itself is computed in fp32.
  args.decay = static_cast<float>(step.learning_rate * step.weight_decay);
  args.fp32_betas[0] = static_cast<float>(step.beta1);
  args.fp32_betas[1] = static_cast<float>(step.beta2);
  args.one_minus_betas[0] = static_cast<float>(1 - step.beta1);
  args.one_minus_betas[1] = static_cast<float>(1 - step.beta2);
  args.epsilon = static_cast<float>(step.epsilon);
  args.divisor = get_fp32_data_or_null(step.divisor);
  args.skipped = step.skip_flag.const_data_ptr<float>();
  args.codes = get_fp32_data_or_null(step.code_values);
  args.bounds = get_fp32_data_or_null(step.rounding_bounds);
  args.seed = step.seed;
  return args;
}

/// Launches the update of at most kMaxAdamWTensorsPerLaunch parameters. Overwrites the arguments
/// that depend on them.
void launch_adamw_batch(std::span<const AdamWParameter> tensors, AdamWArgs& args) {
  std::vector<at::Tensor> reads, writes;
  int64_t blocks = 0;
  args.num_tensors = static_cast<int>(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const AdamWParameter& tensor = tensors[i];
    args.tensors[i] = make_adamw_tensor(tensor, args.moments);
    args.first_block[i] = blocks;
    constexpr int64_t kElementsPerThreadBlock = kMomentBlockSize * kAdamWBlocksPerThreadBlock;
    blocks += (tensor.gradient.numel() + kElementsPerThreadBlock - 1) / kElementsPerThreadBlock;
    // Without absmax, which is 1/64 of the size of the codes.
    reads.insert(reads.end(), {tensor.gradient, tensor.moments[0], tensor.moments[1]});
    writes.insert(writes.end(), {tensor.moments[0], tensor.moments[1]});
    for (const at::Tensor& master : {tensor.master, tensor.low_bits}) {
      if (!master.defined()) continue;
      reads.push_back(master);
      writes.push_back(master);
    }
    if (tensor.weight.defined()) writes.push_back(tensor.weight);
    if (tensor.weight.defined() && !tensor.master.defined()) reads.push_back(tensor.weight);
  }
  args.first_block[tensors.size()] = blocks;
  KernelLaunch("vlmtrain::adamw", reads, writes)(launchers().adamw, args);
}

}  // namespace

void adamw(std::span<const AdamWParameter> tensors, const AdamWStep& step) {
  if (tensors.empty()) return;
  AdamWArgs args = make_shared_args(tensors.front(), step);
  for (size_t first = 0; first < tensors.size(); first += kMaxAdamWTensorsPerLaunch) {
    launch_adamw_batch(tensors.subspan(first, std::min<size_t>(kMaxAdamWTensorsPerLaunch, tensors.size() - first)),
                       args);
  }
}

namespace reference {

at::Tensor run_first_adamw_step(const at::Tensor& master, const at::Tensor& gradient, const AdamWStep& step) {
  // After one update the bias corrections turn the moments into the gradient and its square.
  const at::Tensor gradient_fp64 = gradient.to(at::kDouble) / step.divisor.to(at::kDouble);
  const at::Tensor decayed_weight = master.to(at::kDouble) * (1 - step.learning_rate * step.weight_decay);
  return (decayed_weight - gradient_fp64 / (gradient_fp64.abs() + step.epsilon) * step.learning_rate).to(at::kFloat);
}

}  // namespace reference

namespace {

/// Sets zero moments of `type`.
void set_zero_moments(AdamWParameter& parameter, at::ScalarType type) {
  const int64_t count = parameter.gradient.numel(), blocks = (count + kMomentBlockSize - 1) / kMomentBlockSize;
  const auto options = parameter.gradient.options();
  for (size_t i = 0; i < 2; ++i) {
    parameter.moments[i] =
        type == at::kFloat ? at::zeros({count}, options) : at::zeros({blocks, kMomentBlockSize}, options.dtype(type));
    if (type == at::kByte) parameter.absmax[i] = at::zeros({blocks}, options);
  }
}

/// Tests the first update of bf16 weights without fp32 masters. The rounded weights are compared.
std::vector<ComparedTensors> test_weights_without_masters(RandomInputs& inputs, int64_t count, const AdamWStep& step) {
  std::vector<ComparedTensors> compared_tensors;
  for (const bool is_split : {true, false}) {
    AdamWParameter parameter{.master = {},
                             .gradient = inputs.make_fp32_tensor({count}),
                             .weight = inputs.make_tensor({count}),
                             .steps = step.skip_flag + 1};
    if (is_split) parameter.low_bits = at::zeros({count}, parameter.weight.options().dtype(at::kShort));
    set_zero_moments(parameter, at::kFloat);
    const at::Tensor expected =
        reference::run_first_adamw_step(parameter.weight.to(at::kFloat), parameter.gradient, step);
    adamw(std::span(&parameter, 1), step);
    compared_tensors.push_back({parameter.weight, expected.to(at::kBFloat16)});
  }
  return compared_tensors;
}

}  // namespace

/// Tests the first update, from zero moments in fp32, bf16 and 8 bits; the weights have the inputs'
/// type. In bf16 also without fp32 masters.
std::vector<ComparedTensors> test_adamw(RandomInputs& inputs, const KernelTestSizes& sizes) {
  const int64_t count = sizes.parameters;
  const at::Tensor example = inputs.make_tensor({1}), fp32 = inputs.make_fp32_tensor({1}), zero = fp32.new_zeros({});
  const at::Tensor codes = at::arange(kNumMomentCodes, fp32.options()).div_(kNumMomentCodes - 1).repeat({2, 1});
  const AdamWStep step{.learning_rate = 0.125,
                       .beta1 = 0.5,
                       .beta2 = 0.75,
                       .epsilon = 1e-3,
                       .weight_decay = 0.25,
                       .divisor = zero + 2,
                       .skip_flag = zero,
                       .code_values = codes,
                       .rounding_bounds = codes + 0.5 / (kNumMomentCodes - 1),
                       .seed = 1};
  std::vector<ComparedTensors> compared_tensors;
  for (const auto moments_type : {at::kFloat, at::kBFloat16, at::kByte}) {
    AdamWParameter parameter{.master = inputs.make_fp32_tensor({count}),
                             .gradient = inputs.make_fp32_tensor({count}),
                             .weight = example.scalar_type() == at::kFloat ? at::Tensor() : example.new_empty({count}),
                             .steps = zero + 1};
    set_zero_moments(parameter, moments_type);
    const at::Tensor expected = reference::run_first_adamw_step(parameter.master, parameter.gradient, step);
    adamw(std::span(&parameter, 1), step);
    compared_tensors.push_back({parameter.master, expected});
    if (parameter.weight.defined()) compared_tensors.push_back({parameter.weight, expected.to(example.scalar_type())});
    const at::Tensor mean = parameter.gradient * (0.5 * (1 - step.beta1));  // 0.5 = 1 / divisor
    if (moments_type == at::kFloat) compared_tensors.push_back({parameter.moments[0], mean});
    if (moments_type == at::kBFloat16)
      compared_tensors.push_back({parameter.moments[0].view(-1).narrow(0, 0, count), mean.to(moments_type)});
    // Codes may differ where a value lies on a rounding bound, so only the absmax is compared.
    if (moments_type == at::kByte)
      compared_tensors.push_back(
          {parameter.absmax[0].narrow(0, 0, 1), mean.narrow(0, 0, kMomentBlockSize).abs().amax(0, true)});
  }
  if (example.scalar_type() == at::kBFloat16)
    std::ranges::move(test_weights_without_masters(inputs, count, step), std::back_inserter(compared_tensors));
  return compared_tensors;
}

}  // namespace vlmtrain::kernels
