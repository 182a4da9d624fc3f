#include "vlmtrain/nn/operand.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "nn/held.h"

namespace vlmtrain::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using HeldPrologue = Held<std::shared_ptr<const Prologue>>;

/// The value, onto a residual where one is the last of `tensors`.
struct MakeValue : torch::autograd::Function<MakeValue> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<HeldPrologue>& prologue,
                            at::TensorList tensors, bool has_residual) {
    variable_list inputs = tensors.vec();
    at::Tensor residual;
    if (has_residual) {
      residual = std::move(inputs.back());
      inputs.pop_back();
    }
    Prologue::Made made = has_residual ? prologue->value->make_onto(inputs, residual)
                                       : prologue->value->make(inputs, /*for_backward=*/false);
    context->saved_data["prologue"] = c10::IValue::make_capsule(prologue);
    context->saved_data["inputs"] = std::ssize(inputs);
    context->saved_data["has_residual"] = has_residual;
    inputs.insert(inputs.end(), made.statistics.begin(), made.statistics.end());
    context->save_for_backward(std::move(inputs));
    return made.value;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto prologue = c10::static_intrusive_pointer_cast<HeldPrologue>(context->saved_data["prologue"].toCapsule());
    variable_list inputs = context->get_saved_variables();
    const auto count = context->saved_data["inputs"].toInt();
    const Prologue::Made made{.statistics = {inputs.begin() + count, inputs.end()}};
    inputs.resize(static_cast<size_t>(count));
    std::vector<bool> wanted;
    for (size_t i = 0; i < inputs.size(); ++i) wanted.push_back(context->needs_input_grad(i));
    variable_list result{at::Tensor()};  // of the prologue
    for (auto& gradient : prologue->value->backward(inputs, made, gradients[0].contiguous(), wanted)) {
      result.push_back(std::move(gradient));
    }
    if (context->saved_data["has_residual"].toBool()) result.push_back(gradients[0]);
    result.emplace_back();  // of has_residual
    return result;
  }
};

}  // namespace

Prologue::Made Prologue::make_onto(const std::vector<at::Tensor>& inputs, const at::Tensor& residual) const {
  const at::NoGradGuard no_gradients;
  Made made = make(inputs, /*for_backward=*/false);
  made.value.add_(residual);
  return made;
}

std::vector<at::Tensor> Prologue::backward_beside(const std::vector<at::Tensor>& inputs, const Made& made,
                                                  const at::Tensor& gradient, const std::vector<bool>& wanted,
                                                  const at::Tensor& passing) const {
  auto gradients = backward(inputs, made, gradient, wanted);
  gradients.front().add_(passing);
  return gradients;
}

at::Tensor Operand::value() const {
  if (!prologue_) return inputs_.front();
  return MakeValue::apply(c10::make_intrusive<HeldPrologue>(prologue_), at::TensorList(inputs_),
                          /*has_residual=*/false);
}

at::Tensor Operand::added_to(const at::Tensor& residual) const {
  if (!prologue_) return inputs_.front() + residual;
  variable_list tensors = inputs_;
  tensors.push_back(residual);
  return MakeValue::apply(c10::make_intrusive<HeldPrologue>(prologue_), at::TensorList(tensors),
                          /*has_residual=*/true);
}

}  // namespace vlmtrain::nn
