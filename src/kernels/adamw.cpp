#include "vlmtrain/kernels/adamw.h"

#include <algorithm>

#include "kernels/launch.h"
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

const float* get_fp32_data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

bool is_pack_aligned(const void* pointer) {
  constexpr uintptr_t kPackBytes = 16;
  return reinterpret_cast<uintptr_t>(pointer) % kPackBytes == 0;
}

AdamWTensor make_adamw_tensor(const AdamWParameter& tensor, MomentFormat format) {
  AdamWTensor result{.master = tensor.master.mutable_data_ptr<float>(),
                     .gradient = tensor.gradient.const_data_ptr<float>(),
                     .weight = tensor.weight.defined() ? tensor.weight.mutable_data_ptr() : nullptr,
                     .moments = {tensor.moments[0].mutable_data_ptr(), tensor.moments[1].mutable_data_ptr()},
                     .absmax = {},
                     .steps = tensor.steps.const_data_ptr<float>(),
                     .count = tensor.master.numel(),
                     .tensor_id = tensor.tensor_id,
                     .is_aligned = false};
  if (format == MomentFormat::k8Bit) {
    for (size_t i = 0; i < 2; ++i) result.absmax[i] = tensor.absmax[i].mutable_data_ptr<float>();
  }
  // bf16 and 8-bit moments are stored in whole blocks and therefore always aligned.
  result.is_aligned = is_pack_aligned(result.master) && is_pack_aligned(result.gradient) &&
                      is_pack_aligned(result.weight) &&
                      (format != MomentFormat::kFp32 || std::ranges::all_of(result.moments, is_pack_aligned));
  return result;
}

/// Returns the arguments that all launches of an update share.
AdamWArgs make_shared_args(const AdamWParameter& first, const AdamWStep& step) {
  AdamWArgs args{};
  args.moments = get_moment_format(first.moments[0]);
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
    blocks += (tensor.master.numel() + kElementsPerThreadBlock - 1) / kElementsPerThreadBlock;
    // Without absmax, which is 1/64 of the size of the codes.
    reads.insert(reads.end(), {tensor.master, tensor.gradient, tensor.moments[0], tensor.moments[1]});
    writes.insert(writes.end(), {tensor.master, tensor.moments[0], tensor.moments[1]});
    if (tensor.weight.defined()) writes.push_back(tensor.weight);
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

}  // namespace vlmtrain::kernels
