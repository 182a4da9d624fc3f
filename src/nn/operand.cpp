#include "vlmtrain/nn/operand.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/held.h"

namespace vlmtrain::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using HeldPrologue = Held<std::shared_ptr<const Prologue>>;

struct MakeValue : torch::autograd::Function<MakeValue> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<HeldPrologue>& prologue,
                            at::TensorList inputs) {
    Prologue::Made made = prologue->value->make(inputs.vec(), /*for_backward=*/false);
    variable_list kept = inputs.vec();
    kept.insert(kept.end(), made.statistics.begin(), made.statistics.end());
    context->save_for_backward(std::move(kept));
    context->saved_data["prologue"] = c10::IValue::make_capsule(prologue);
    context->saved_data["inputs"] = static_cast<int64_t>(inputs.size());
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
    return result;
  }
};

}  // namespace

at::Tensor Operand::value() const {
  if (!prologue_) return inputs_.front();
  return MakeValue::apply(c10::make_intrusive<HeldPrologue>(prologue_), at::TensorList(inputs_));
}

}  // namespace vlmtrain::nn
