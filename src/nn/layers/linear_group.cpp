#include "nn/layers/linear_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "nn/adjacent_tensors.h"
#include "nn/layers/group_weights.h"
#include "nn/round_up.h"
#include "nn/value_capsule.h"
#include "vlmtrain/nn/layers/matmul.h"

namespace vlmtrain::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Member = LinearGroup::Member;

/// The arguments of a call of a MergedLinear, kept for the backward pass.
struct LinearCall {
  std::shared_ptr<const LinearGroup> group;
  std::shared_ptr<const FusedPrologue> prologue;  // null: the input is a plain tensor
  size_t num_inputs = 0;                          // number of tensors of the LinearInput
  bool has_residual = false;
  bool returns_residual_stream = false;  // whether the first input is also returned, as the second result
  bool has_dropout = false;              // whether the adapters apply dropout to their inputs
};
using LinearCallCapsule = ValueCapsule<LinearCall>;

/// Computes x Wᵀ member by member. Writes it to y [rows, out] if defined, else to a new tensor.
at::Tensor apply_member_weights(const LinearGroup& group, const GroupWeights& weights, const at::Tensor& x,
                                at::Tensor y) {
  if (!y.defined()) y = at::empty({x.size(0), group.columns()}, x.options());
  for (size_t i = 0; i < group.members.size(); ++i) {
    matmul_transposed_out(group.members[i].slice_columns(y), x, weights.member(i));
  }
  group.zero_padding_columns(y);
  return y;
}

/// Returns x Wᵀ (+ b) (+ residual), [rows, out].
at::Tensor apply_group_weights(const LinearGroup& group, const at::Tensor& x, const at::Tensor& residual) {
  at::Tensor y;
  // Allocated before the dequantized weights. Allocated after them, a saved y would leave a gap of
  // their size when they are freed.
  if (x.is_cuda()) y = at::empty({x.size(0), group.columns()}, x.options());
  const GroupWeights weights(group, x.size(1));
  const at::Tensor& weight = weights.merged();
  const at::Tensor bias = group.make_merged_bias();
  // cuBLAS adds a bias or residual in its epilogue, which is cheaper than another pass over y.
  if (x.is_cuda() && weight.defined() && bias.defined()) {
    at::addmm_out(y, bias, x, weight.t());
  } else if (x.is_cuda() && weight.defined() && !group.has_bias() && residual.defined()) {
    return at::addmm_out(y, residual, x, weight.t());
  } else {
    if (weight.defined()) {
      y = x.is_cuda() ? at::mm_out(y, x, weight.t()) : matmul_transposed(x, weight);
    } else {
      y = apply_member_weights(group, weights, x, y);
    }
    if (bias.defined()) y.add_(bias);
  }
  if (group.has_bias() && !bias.defined()) {
    for (const Member& member : group.members) member.slice_columns(y).add_(member.bias);
  }
  return residual.defined() ? y.add_(residual) : y;
}

/// Adds the outputs of the adapters for x [rows, in] to y [rows, out]. Sets lora_hidden and dropout
/// of `saved`.
void add_adapter_outputs(const LinearGroup& group, bool has_dropout, const at::Tensor& x, const at::Tensor& y,
                         LinearSavedState& saved) {
  const auto adapters = group.adapters();
  if (adapters.empty()) return;
  const LoraProjections hidden(adapters, x.size(0), x.options());
  saved.lora_hidden = hidden.by_adapter;
  const auto project_down = [&](int64_t consumer, const at::Tensor& consumer_input) {
    const auto i = static_cast<size_t>(consumer);
    matmul_transposed_out(saved.lora_hidden[i], consumer_input, make_padded_lora_a(*adapters[i], x.size(1)),
                          adapters[i]->scale());
  };
  at::Tensor a;
  if (!has_dropout && !hidden.has_padding_columns) a = make_merged_lora_a(adapters, x.size(1));
  if (has_dropout) {
    saved.dropout = adapters.front()->make_dropouts(x, std::ssize(adapters));
    saved.dropout.apply(x, project_down);
  } else if (a.defined()) {
    matmul_transposed_out(hidden.merged, x, a, adapters.front()->scale());
  } else {
    for (int64_t i = 0; i < std::ssize(adapters); ++i) project_down(i, x);
  }
  auto next = saved.lora_hidden.begin();
  for (const Member& member : group.members) {
    if (member.adapter) addmm_in_place(member.slice_columns(y), *next++, make_aligned_lora_b(*member.adapter).t());
  }
}

struct LinearGroupFunction : torch::autograd::Function<LinearGroupFunction> {
  /// `tensors`: the inputs, the residual, and the trained tensors of each member in order: weight,
  /// bias, A, B.
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<LinearCallCapsule>& capsule,
                               at::TensorList tensors) {
    const LinearCall& call = capsule->value;
    LinearSavedState saved{
        .inputs = tensors.slice(0, call.num_inputs).vec(), .statistics = {}, .lora_hidden = {}, .dropout = {}};
    FusedPrologue::Output prologue_output = call.prologue ? call.prologue->forward(saved.inputs, /*for_backward=*/false)
                                                          : FusedPrologue::Output{.value = saved.inputs.front()};
    saved.statistics = std::move(prologue_output.statistics);
    saved.input_columns = prologue_output.value.size(1);
    at::Tensor y = apply_group_weights(*call.group, prologue_output.value,
                                       call.has_residual ? tensors[call.num_inputs] : at::Tensor());
    add_adapter_outputs(*call.group, call.has_dropout, prologue_output.value, y, saved);
    saved.save(context);
    context->saved_data["call"] = c10::IValue::make_capsule(capsule);
    context->saved_data["tensors"] = static_cast<int64_t>(tensors.size());
    context->set_materialize_grads(false);
    if (call.returns_residual_stream) return {std::move(y), saved.inputs.front()};
    return {std::move(y)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto capsule = c10::static_intrusive_pointer_cast<LinearCallCapsule>(context->saved_data["call"].toCapsule());
    const LinearCall& call = capsule->value;
    std::vector<bool> needs_grad;
    for (size_t i = 0; i < call.num_inputs; ++i) needs_grad.push_back(context->needs_input_grad(i));
    const at::Tensor residual_stream_gradient = call.returns_residual_stream ? gradients[1] : at::Tensor();
    if (!gradients[0].defined()) return make_residual_stream_gradients(context, residual_stream_gradient);
    LinearBackward linear_backward(*call.group, call.prologue.get(), LinearSavedState::load(context), gradients[0],
                                   std::move(needs_grad));
    variable_list result = linear_backward.compute_gradients(call.has_residual, residual_stream_gradient);
    result.insert(result.begin(), at::Tensor());  // for the argument `capsule`
    return result;
  }

 private:
  /// Returns the gradients of a call whose first result was not used.
  static variable_list make_residual_stream_gradients(AutogradContext* context,
                                                      const at::Tensor& residual_stream_gradient) {
    // The gradient at index 0 belongs to the argument `capsule`, the next to the first tensor.
    constexpr size_t kFirstTensorGradientIndex = 1;
    variable_list result(kFirstTensorGradientIndex + static_cast<size_t>(context->saved_data["tensors"].toInt()));
    result[kFirstTensorGradientIndex] = residual_stream_gradient;
    return result;
  }
};

/// Appends the trained tensors of a group in the order of LinearGroupFunction::forward().
void append_trained_tensors(const LinearGroup& group, std::vector<at::Tensor>& tensors) {
  for (const Member& member : group.members) {
    if (member.trains_weight()) tensors.push_back(member.weight.values());
    if (member.trains_bias()) tensors.push_back(member.bias);
    if (!member.adapter) continue;
    for (const at::Tensor& tensor : {member.adapter->a(), member.adapter->b()}) {
      if (tensor.requires_grad()) tensors.push_back(tensor);
    }
  }
}

}  // namespace

int64_t LinearGroup::columns() const {
  return round_up(members.back().first_column + members.back().columns, column_alignment);
}

bool LinearGroup::has_padding_columns() const {
  return std::ranges::any_of(members, [&](const Member& member) { return member.columns % column_alignment != 0; });
}

void LinearGroup::zero_padding_columns(const at::Tensor& rows) const {
  if (!has_padding_columns()) return;
  const int64_t width = members.front().columns;
  if (std::ranges::all_of(members, [&](const Member& member) { return member.columns == width; })) {
    // One launch for all members.
    const int64_t padded_width = round_up(width, column_alignment);
    rows.unflatten(1, {std::ssize(members), padded_width}).narrow(2, width, padded_width - width).zero_();
    return;
  }
  for (const Member& member : members) {
    const int64_t padding = round_up(member.columns, column_alignment) - member.columns;
    if (padding > 0) rows.narrow(1, member.first_column + member.columns, padding).zero_();
  }
}

at::Tensor LinearGroup::make_merged_bias() const {
  if (!has_bias()) return {};
  std::vector<at::Tensor> biases;
  for (const Member& member : members) biases.push_back(member.bias);
  return view_adjacent_tensors(biases, column_alignment);
}

std::vector<const LoraAdapter*> LinearGroup::adapters() const {
  std::vector<const LoraAdapter*> result;
  for (const Member& member : members) {
    if (member.adapter) result.push_back(&*member.adapter);
  }
  return result;
}

bool LinearGroup::has_dora() const {
  return std::ranges::any_of(adapters(), &LoraAdapter::has_dora);
}

namespace {

variable_list apply_linear_group(const std::shared_ptr<const LinearGroup>& group, const LinearInput& x,
                                 const at::Tensor& residual, bool returns_residual_stream) {
  std::vector<at::Tensor> tensors = x.inputs();
  if (residual.defined()) tensors.push_back(residual);
  append_trained_tensors(*group, tensors);
  // Dropout is determined here because gradients are disabled inside the autograd Function.
  const LinearCall call{.group = group,
                        .prologue = x.prologue(),
                        .num_inputs = x.inputs().size(),
                        .has_residual = residual.defined(),
                        .returns_residual_stream = returns_residual_stream,
                        .has_dropout = std::ranges::any_of(group->adapters(), &LoraAdapter::is_dropout_active)};
  return LinearGroupFunction::apply(c10::make_intrusive<LinearCallCapsule>(call), at::TensorList(tensors));
}

}  // namespace

at::Tensor apply_linear_group(const std::shared_ptr<const LinearGroup>& group, const LinearInput& x,
                              const at::Tensor& residual) {
  return apply_linear_group(group, x, residual, /*returns_residual_stream=*/false).front();
}

ResidualBranch apply_linear_branch(const std::shared_ptr<const LinearGroup>& group, const LinearInput& x) {
  auto results = apply_linear_group(group, x, /*residual=*/{}, /*returns_residual_stream=*/true);
  return {std::move(results[0]), std::move(results[1])};
}

}  // namespace vlmtrain::nn
