#include "nn/attention/selective_checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "nn/value_capsule.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local SelectiveCheckpoint* current_checkpoint = nullptr;
thread_local SelectiveCheckpoint::Mode current_mode = SelectiveCheckpoint::Mode::kRecord;

/// A kernel with the result of its forward().
struct AttentionCall {
  std::shared_ptr<const AttentionKernel> kernel;
  std::vector<at::Tensor> outputs;
};
using AttentionCallCapsule = ValueCapsule<AttentionCall>;

/// Attention whose forward() has already run; backward() of the kernel computes the gradients.
struct PrecomputedAttention : torch::autograd::Function<PrecomputedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const c10::intrusive_ptr<AttentionCallCapsule>& call) {
    variable_list tensors{query, key, value};
    tensors.insert(tensors.end(), call->value.outputs.begin(), call->value.outputs.end());
    context->save_for_backward(std::move(tensors));
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    at::Tensor output = call->value.outputs.front();
    call->value.outputs.clear();  // so that the autograd node alone owns the tensors and frees them early
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto call = c10::static_intrusive_pointer_cast<AttentionCallCapsule>(context->saved_data["call"].toCapsule());
    const variable_list saved_tensors = context->get_saved_variables();
    constexpr int64_t kNumInputs = 3;  // query, key, value
    const auto kernel_gradients =
        call->value.kernel->backward(gradients[0], saved_tensors[0], saved_tensors[1], saved_tensors[2],
                                     {saved_tensors.begin() + kNumInputs, saved_tensors.end()});
    return {kernel_gradients.query, kernel_gradients.key, kernel_gradients.value, at::Tensor()};
  }
};

std::vector<at::Tensor> run_kernel(const AttentionKernel& kernel, const at::Tensor& query, const at::Tensor& key,
                                   const at::Tensor& value) {
  const at::NoGradGuard no_gradients;
  return kernel.forward(query, key, value);
}

}  // namespace

SelectiveCheckpoint::Scope::Scope(SelectiveCheckpoint* checkpoint, Mode mode)
    : outer_checkpoint_(std::exchange(current_checkpoint, checkpoint)),
      outer_mode_(std::exchange(current_mode, mode)) {}

SelectiveCheckpoint::Scope::~Scope() {
  current_checkpoint = outer_checkpoint_;
  current_mode = outer_mode_;
}

at::Tensor attend(const std::shared_ptr<const AttentionKernel>& kernel, const at::Tensor& query, const at::Tensor& key,
                  const at::Tensor& value) {
  SelectiveCheckpoint* const checkpoint = current_checkpoint;
  if (checkpoint == nullptr) {
    if (kernel->has_autograd_formula() || !at::GradMode::is_enabled())
      return kernel->forward(query, key, value).front();
    return PrecomputedAttention::apply(
        query, key, value,
        c10::make_intrusive<AttentionCallCapsule>(AttentionCall{kernel, run_kernel(*kernel, query, key, value)}));
  }
  if (current_mode == SelectiveCheckpoint::Mode::kRecord) {
    checkpoint->recorded_outputs_.push_back(kernel->forward(query, key, value));
    return checkpoint->recorded_outputs_.back().front();
  }
  VLMTRAIN_CHECK(checkpoint->next_call_index_ < checkpoint->recorded_outputs_.size(),
                 "the recomputed block calls attention {} times, more often than its first forward pass",
                 checkpoint->next_call_index_ + 1);
  return PrecomputedAttention::apply(
      query, key, value,
      c10::make_intrusive<AttentionCallCapsule>(
          AttentionCall{kernel, std::move(checkpoint->recorded_outputs_[checkpoint->next_call_index_++])}));
}

}  // namespace vlmtrain::nn
