#include "vlmtrain/nn/operand.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "nn/value_capsule.h"

namespace vlmtrain::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using PrologueCapsule = ValueCapsule<std::shared_ptr<const FusedPrologue>>;

/// The value, onto a residual where one is the last of `tensors`.
struct PrologueFunction : torch::autograd::Function<PrologueFunction> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<PrologueCapsule>& prologue,
                            at::TensorList tensors, bool has_residual) {
    variable_list inputs = tensors.vec();
    at::Tensor residual;
    if (has_residual) {
      residual = std::move(inputs.back());
      inputs.pop_back();
    }
    FusedPrologue::Output output = has_residual ? prologue->value->forward_add_residual(inputs, residual)
                                                : prologue->value->forward(inputs, /*for_backward=*/false);
    context->saved_data["prologue"] = c10::IValue::make_capsule(prologue);
    context->saved_data["inputs"] = std::ssize(inputs);
    context->saved_data["has_residual"] = has_residual;
    inputs.insert(inputs.end(), output.statistics.begin(), output.statistics.end());
    context->save_for_backward(std::move(inputs));
    return output.value;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto prologue =
        c10::static_intrusive_pointer_cast<PrologueCapsule>(context->saved_data["prologue"].toCapsule());
    variable_list inputs = context->get_saved_variables();
    const auto count = context->saved_data["inputs"].toInt();
    const FusedPrologue::Output output{.statistics = {inputs.begin() + count, inputs.end()}};
    inputs.resize(static_cast<size_t>(count));
    std::vector<bool> needs_grad;
    for (size_t i = 0; i < inputs.size(); ++i) needs_grad.push_back(context->needs_input_grad(i));
    variable_list result{at::Tensor()};  // of the prologue
    for (auto& gradient : prologue->value->backward(inputs, output, gradients[0].contiguous(), needs_grad)) {
      result.push_back(std::move(gradient));
    }
    if (context->saved_data["has_residual"].toBool()) result.push_back(gradients[0]);
    result.emplace_back();  // of has_residual
    return result;
  }
};

}  // namespace

FusedPrologue::Output FusedPrologue::forward_add_residual(const std::vector<at::Tensor>& inputs,
                                                          const at::Tensor& residual) const {
  const at::NoGradGuard no_gradients;
  Output output = forward(inputs, /*for_backward=*/false);
  output.value.add_(residual);
  return output;
}

std::vector<at::Tensor> FusedPrologue::backward_with_stream(const std::vector<at::Tensor>& inputs, const Output& output,
                                                            const at::Tensor& gradient,
                                                            const std::vector<bool>& needs_grad,
                                                            const at::Tensor& stream_gradient) const {
  auto gradients = backward(inputs, output, gradient, needs_grad);
  gradients.front().add_(stream_gradient);
  return gradients;
}

at::Tensor LinearInput::value() const {
  if (!prologue_) return inputs_.front();
  return PrologueFunction::apply(c10::make_intrusive<PrologueCapsule>(prologue_), at::TensorList(inputs_),
                                 /*has_residual=*/false);
}

at::Tensor LinearInput::add_residual(const at::Tensor& residual) const {
  if (!prologue_) return inputs_.front() + residual;
  variable_list tensors = inputs_;
  tensors.push_back(residual);
  return PrologueFunction::apply(c10::make_intrusive<PrologueCapsule>(prologue_), at::TensorList(tensors),
                                 /*has_residual=*/true);
}

}  // namespace vlmtrain::nn
