#include "vlmtrain/kernels/adamw.h"

#include <algorithm>

#include "kernels/launch.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {

namespace {

MomentsHeld held_as(const at::Tensor& moments) {
  switch (moments.scalar_type()) {
    case at::kFloat:
      return MomentsHeld::kFp32;
    case at::kBFloat16:
      return MomentsHeld::kBf16;
    case at::kByte:
      return MomentsHeld::k8Bit;
    default:
      throw InternalError("moments of a type that no kernel has");
  }
}

const float* fp32_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

bool begins_a_pack(const void* place) {
  constexpr uintptr_t kPackBytes = 16;
  return reinterpret_cast<uintptr_t>(place) % kPackBytes == 0;
}

AdamWTensor described(const MovedTensor& tensor, MomentsHeld held) {
  AdamWTensor result{.master = tensor.master.mutable_data_ptr<float>(),
                     .gradient = tensor.gradient.const_data_ptr<float>(),
                     .weight = tensor.weight.defined() ? tensor.weight.mutable_data_ptr() : nullptr,
                     .moments = {tensor.moments[0].mutable_data_ptr(), tensor.moments[1].mutable_data_ptr()},
                     .absmax = {},
                     .steps = tensor.steps.const_data_ptr<float>(),
                     .count = tensor.master.numel(),
                     .number = tensor.number,
                     .in_packs = false};
  if (held == MomentsHeld::k8Bit) {
    for (size_t i = 0; i < 2; ++i) result.absmax[i] = tensor.absmax[i].mutable_data_ptr<float>();
  }
  result.in_packs = begins_a_pack(result.master) && begins_a_pack(result.gradient) && begins_a_pack(result.weight) &&
                    (held != MomentsHeld::kFp32 || std::ranges::all_of(result.moments, begins_a_pack));
  return result;
}

/// What is the same for all launches of a step.
AdamW common(const MovedTensor& first, const AdamWStep& step) {
  AdamW call{};
  call.moments = held_as(first.moments[0]);
  call.weight_element = first.weight.defined() ? element_of(first.weight) : Element::kBFloat16;
  call.learning_rate = step.learning_rate;
  call.beta1 = step.beta1;
  call.beta2 = step.beta2;
  call.decay = static_cast<float>(step.learning_rate * step.weight_decay);
  call.kept[0] = static_cast<float>(step.beta1);
  call.kept[1] = static_cast<float>(step.beta2);
  call.taken[0] = static_cast<float>(1 - step.beta1);
  call.taken[1] = static_cast<float>(1 - step.beta2);
  call.epsilon = static_cast<float>(step.epsilon);
  call.divisor = fp32_or_null(step.divisor);
  call.skipped = step.skipped.const_data_ptr<float>();
  call.codes = fp32_or_null(step.codes);
  call.bounds = fp32_or_null(step.bounds);
  call.seed = step.seed;
  return call;
}

void start(std::span<const MovedTensor> tensors, AdamW& call) {
  std::vector<at::Tensor> reads, writes;
  int64_t blocks = 0;
  call.tensors = static_cast<int>(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const MovedTensor& tensor = tensors[i];
    call.tensor[i] = described(tensor, call.moments);
    call.first_block[i] = blocks;
    constexpr int64_t kElements = kMomentBlock * kAdamWBlocks;
    blocks += (tensor.master.numel() + kElements - 1) / kElements;
    reads.insert(reads.end(), {tensor.master, tensor.gradient, tensor.moments[0], tensor.moments[1]});
    writes.insert(writes.end(), {tensor.master, tensor.moments[0], tensor.moments[1]});
    if (tensor.weight.defined()) writes.push_back(tensor.weight);
  }
  call.first_block[tensors.size()] = blocks;
  Launch("vlmtrain::adamw", reads, writes)(launchers().adamw, call);
}

}  // namespace

void adamw(std::span<const MovedTensor> tensors, const AdamWStep& step) {
  if (tensors.empty()) return;
  AdamW call = common(tensors.front(), step);
  for (size_t first = 0; first < tensors.size(); first += kMostAdamWTensors) {
    start(tensors.subspan(first, std::min<size_t>(kMostAdamWTensors, tensors.size() - first)), call);
  }
}

}  // namespace vlmtrain::kernels
