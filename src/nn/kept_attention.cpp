#include "nn/kept_attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "nn/held.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local KeptAttention* results_of_thread = nullptr;
thread_local KeptAttention::Run run_of_thread = KeptAttention::Run::kFirst;

/// A call, whose results are known.
struct Made {
  std::shared_ptr<const AttentionKernel> kernel;
  std::vector<at::Tensor> results;
};
using HeldMade = Held<Made>;

struct Known : torch::autograd::Function<Known> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const c10::intrusive_ptr<HeldMade>& made) {
    variable_list kept{query, key, value};
    kept.insert(kept.end(), made->value.results.begin(), made->value.results.end());
    context->save_for_backward(std::move(kept));
    context->saved_data["made"] = c10::IValue::make_capsule(made);
    at::Tensor output = made->value.results.front();
    made->value.results.clear();  // the node lets go of what it saved as soon as it is done
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto made = c10::static_intrusive_pointer_cast<HeldMade>(context->saved_data["made"].toCapsule());
    const variable_list kept = context->get_saved_variables();
    constexpr int64_t kInputs = 3;
    const auto found =
        made->value.kernel->backward(gradients[0], kept[0], kept[1], kept[2], {kept.begin() + kInputs, kept.end()});
    return {found.query, found.key, found.value, at::Tensor()};
  }
};

std::vector<at::Tensor> made_by(const AttentionKernel& kernel, const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value) {
  const at::NoGradGuard no_gradients;
  return kernel.forward(query, key, value);
}

}  // namespace

KeptAttention::Scope::Scope(KeptAttention* results, Run run)
    : outer_(std::exchange(results_of_thread, results)), outer_run_(std::exchange(run_of_thread, run)) {}

KeptAttention::Scope::~Scope() {
  results_of_thread = outer_;
  run_of_thread = outer_run_;
}

at::Tensor attend(const std::shared_ptr<const AttentionKernel>& kernel, const at::Tensor& query, const at::Tensor& key,
                  const at::Tensor& value) {
  KeptAttention* const kept = results_of_thread;
  if (kept == nullptr) {
    if (kernel->is_one_operation() || !at::GradMode::is_enabled()) return kernel->forward(query, key, value).front();
    return Known::apply(query, key, value,
                        c10::make_intrusive<HeldMade>(Made{kernel, made_by(*kernel, query, key, value)}));
  }
  if (run_of_thread == KeptAttention::Run::kFirst) {
    kept->calls_.push_back(kernel->forward(query, key, value));
    return kept->calls_.back().front();
  }
  VLMTRAIN_CHECK(kept->next_ < kept->calls_.size(),
                 "attention for the {}th time in the second run of a block, not in its first", kept->next_ + 1);
  return Known::apply(query, key, value,
                      c10::make_intrusive<HeldMade>(Made{kernel, std::move(kept->calls_[kept->next_++])}));
}

}  // namespace vlmtrain::nn
