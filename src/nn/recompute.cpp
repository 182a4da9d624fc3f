#include "vlmtrain/nn/recompute.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "vlmtrain/nn/dropout.h"

namespace vlmtrain::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local bool in_first_run = false;

/// Says that gradients are wanted although none are recorded yet.
class FirstRun {
 public:
  explicit FirstRun(bool gradients_are_wanted) : outer_(std::exchange(in_first_run, gradients_are_wanted)) {}
  ~FirstRun() { in_first_run = outer_; }
  FirstRun(const FirstRun&) = delete;
  FirstRun& operator=(const FirstRun&) = delete;

 private:
  bool outer_;
};

struct Block : torch::CustomClassHolder {
  explicit Block(std::function<at::Tensor(const at::Tensor&)> function) : run(std::move(function)) {}
  std::function<at::Tensor(const at::Tensor&)> run;
  DropoutUnits dropout_units = DropoutScope::current();
};

struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<Block>& block, const at::Tensor& input,
                            at::TensorList parameters) {
    context->saved_data["block"] = c10::IValue::make_capsule(block);
    variable_list kept{input};
    kept.insert(kept.end(), parameters.begin(), parameters.end());
    context->save_for_backward(std::move(kept));
    return block->run(input);
  }

  static variable_list backward(AutogradContext* context, const variable_list& output_gradients) {
    const auto block = c10::static_intrusive_pointer_cast<Block>(context->saved_data["block"].toCapsule());
    variable_list inputs = context->get_saved_variables();
    const bool input_needs_gradient = inputs[0].requires_grad();
    inputs[0] = inputs[0].detach().set_requires_grad(input_needs_gradient);

    at::Tensor output;
    {
      const at::AutoGradMode with_gradients(true);
      const DropoutScope same_dropout(block->dropout_units);
      output = block->run(inputs[0]);
    }
    variable_list wanted;
    for (const auto& input : inputs) {
      if (input.requires_grad()) wanted.push_back(input);
    }
    const variable_list found = torch::autograd::grad({output}, wanted, output_gradients, /*retain_graph=*/false,
                                                      /*create_graph=*/false, /*allow_unused=*/true);
    variable_list gradients{at::Tensor()};  // of the block itself
    auto next = found.begin();
    for (const auto& input : inputs) gradients.push_back(input.requires_grad() ? *next++ : at::Tensor());
    return gradients;
  }
};

}  // namespace

at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& block, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters) {
  const FirstRun first_run(gradients_wanted());
  return Recompute::apply(c10::make_intrusive<Block>(block), input, at::TensorList(parameters));
}

bool gradients_wanted() {
  return at::GradMode::is_enabled() || in_first_run;
}

}  // namespace vlmtrain::nn
