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
#include "vlmtrain/kernels/rows.h"
#include "vlmtrain/nn/layers/matmul.h"
#include "vlmtrain/nn/layers/recompute.h"

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
  const BorderedWeights* border = nullptr;        // of the group; null if the adapters have storage of their own
  bool can_border_weights = false;                // whether `border` is available in products, next to the weights
  bool has_residual = false;
  bool returns_residual_stream = false;  // whether the first input is also returned, as the second result
  bool has_dropout = false;              // whether the adapters apply dropout to their inputs
  bool saves_hidden = false;             // whether the adapters' hidden values are needed for a backward pass
  bool needs_gradient = false;           // whether this call, or the same one in a recomputation, has a backward pass
};
using LinearCallCapsule = ValueCapsule<LinearCall>;

/// Computes x Wᵀ. Writes it to y [rows, out] if defined, else to a new tensor.
at::Tensor multiply_by_weights(const at::Tensor& x, const at::Tensor& weight, at::Tensor y) {
  if (!y.defined()) return matmul_transposed(x, weight);
  if (x.is_cuda()) return at::mm_out(y, x, weight.t());
  matmul_transposed_out(y, x, weight);
  return y;
}

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

/// Returns whether the gradient of the result gets a border for the adapters' gradients, which then
/// take part in the product with the weights. cuBLAS processes the sum of that product in multiples of
/// kSumAlignment columns; more than 3 % of them would cost more than a product of their own.
/// Biases are added in the epilogue of a product only if its result is contiguous.
bool has_gradient_border(const LinearCall& call) {
  if (call.group->output_columns == OutputColumns::kDense && !call.has_residual) return false;
  constexpr int64_t kSumAlignment = 64;
  constexpr double kMaxGrowth = 1.03;
  if (!call.can_border_weights || !call.needs_gradient || call.has_dropout || call.group->has_bias()) return false;
  const int64_t columns = call.group->columns(), border_columns = call.border->border_columns();
  return static_cast<double>(round_up(columns + border_columns, kSumAlignment)) <=
         kMaxGrowth * static_cast<double>(round_up(columns, kSumAlignment));
}

/// Returns an uninitialized result [rows, out] for products that write to it; undefined if they return
/// a new one. Kernels give a gradient the row stride of its tensor.
at::Tensor allocate_result(const LinearCall& call, const at::Tensor& x) {
  const int64_t border_columns = has_gradient_border(call) ? call.border->border_columns() : 0;
  if (!x.is_cuda() && border_columns == 0) return {};
  return kernels::allocate_bordered_rows({x.size(0), call.group->columns()}, border_columns, x.options());
}

/// Returns x Wᵀ (+ b) (+ residual), [rows, out]. With WeightBorder::kB, x ends with the hidden values h
/// of the adapters (compute_input()), and the result includes h Bᵀ.
at::Tensor apply_group_weights(const LinearCall& call, const at::Tensor& x, WeightBorder border,
                               const at::Tensor& residual) {
  const LinearGroup& group = *call.group;
  // Allocated before the dequantized weights. Allocated after them, a saved y would leave a gap of
  // their size when they are freed.
  at::Tensor y = allocate_result(call, x);
  const int64_t border_columns = border == WeightBorder::kB ? call.border->border_columns() : 0;
  const GroupWeights weights(group, x.size(1) - border_columns, border);
  const at::Tensor& weight = weights.merged();
  const at::Tensor bias = group.make_merged_bias();
  // cuBLAS adds a bias or residual in its epilogue, which is cheaper than another pass over y.
  if (x.is_cuda() && weight.defined() && bias.defined()) {
    at::addmm_out(y, bias, x, weight.t());
  } else if (x.is_cuda() && weight.defined() && !group.has_bias() && residual.defined()) {
    return at::addmm_out(y, residual, x, weight.t());
  } else {
    if (weight.defined()) {
      y = multiply_by_weights(x, weight, y);
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

/// Writes scale · dropout(x) Aᵀ of each adapter to `hidden`. Sets dropout of `saved`.
void compute_lora_hidden(const LinearCall& call, const std::vector<const LoraAdapter*>& adapters, const at::Tensor& x,
                         const LoraProjections& hidden, LinearSavedState& saved) {
  const BorderedWeights* const border = call.border;
  const auto project_down = [&](int64_t consumer, const at::Tensor& consumer_input) {
    const auto i = static_cast<size_t>(consumer);
    if (border != nullptr) {
      matmul_transposed_out(border->slice_border(hidden.merged, i), consumer_input,
                            border->padded_a(i).narrow(1, 0, x.size(1)), adapters[i]->scale());
      return;
    }
    matmul_transposed_out(hidden.by_adapter[i], consumer_input, make_padded_lora_a(*adapters[i], x.size(1)),
                          adapters[i]->scale());
  };
  if (call.has_dropout) {
    saved.dropout = adapters.front()->make_dropouts(x, std::ssize(adapters));
    saved.dropout.apply(x, project_down);
    return;
  }
  const at::Tensor a = make_projections_a(border, adapters, hidden, x.size(1));
  if (a.defined()) {
    matmul_transposed_out(hidden.merged, x, a, adapters.front()->scale());
  } else {
    for (int64_t i = 0; i < std::ssize(adapters); ++i) project_down(i, x);
  }
}

/// Adds the outputs of the adapters for their hidden values to y [rows, out].
void add_adapter_outputs(const LinearCall& call, const LoraProjections& hidden, const at::Tensor& y) {
  if (call.border != nullptr) {
    addmm_in_place(y, hidden.merged, call.border->b().t());
    return;
  }
  auto next = hidden.by_adapter.begin();
  for (const Member& member : call.group->members) {
    if (member.adapter) addmm_in_place(member.slice_columns(y), *next++, make_aligned_lora_b(*member.adapter).t());
  }
}

/// Returns the value of a call's input and the statistics of its prologue. A prologue leaves a border
/// for the hidden values of the adapters if the weights have one.
FusedPrologue::Output compute_input(const LinearCall& call, const std::vector<at::Tensor>& inputs) {
  if (!call.prologue) return {.value = inputs.front()};
  if (!call.can_border_weights) return call.prologue->forward(inputs, /*for_backward=*/false);
  return call.prologue->forward_with_border(inputs, call.border->border_columns());
}

/// Returns whether x, which compute_input() returned, has a border for the hidden values of the adapters
/// and the weights one for B.
bool has_border_for_hidden(const LinearCall& call, const at::Tensor& x) {
  return call.prologue && call.can_border_weights && call.border->input_columns() == x.size(1) &&
         kernels::get_border_columns(x) == call.border->border_columns();
}

/// Computes the result of a call for its input's value. Sets the fields of `saved` that belong to the
/// adapters.
at::Tensor compute_result(const LinearCall& call, const at::Tensor& x, const at::Tensor& residual,
                          LinearSavedState& saved) {
  const auto adapters = call.group->adapters();
  if (adapters.empty()) return apply_group_weights(call, x, WeightBorder::kNone, residual);
  const auto make_projections = [&](const at::Tensor& matrix) {
    return LoraProjections(adapters, x.size(0), x.options(), matrix);
  };
  if (!has_border_for_hidden(call, x)) {
    at::Tensor y = apply_group_weights(call, x, WeightBorder::kNone, residual);
    const LoraProjections hidden = make_projections({});
    compute_lora_hidden(call, adapters, x, hidden, saved);
    add_adapter_outputs(call, hidden, y);
    saved.lora_hidden = hidden.by_adapter;
    return y;
  }
  const at::Tensor x_and_hidden = kernels::view_with_border(x);
  const at::Tensor border = x_and_hidden.narrow(1, x.size(1), kernels::get_border_columns(x));
  compute_lora_hidden(call, adapters, x, make_projections(border), saved);
  at::Tensor y = apply_group_weights(call, x_and_hidden, WeightBorder::kB, residual);
  // A copy, because the border would keep all of x in memory.
  if (call.saves_hidden) saved.lora_hidden = make_projections(border.clone(at::MemoryFormat::Contiguous)).by_adapter;
  return y;
}

struct LinearGroupFunction : torch::autograd::Function<LinearGroupFunction> {
  /// `tensors`: the inputs, the residual, and the trained tensors of each member in order: weight,
  /// bias, A, B.
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<LinearCallCapsule>& capsule,
                               at::TensorList tensors) {
    const LinearCall& call = capsule->value;
    LinearSavedState saved{
        .inputs = tensors.slice(0, call.num_inputs).vec(), .statistics = {}, .lora_hidden = {}, .dropout = {}};
    FusedPrologue::Output input = compute_input(call, saved.inputs);
    saved.statistics = std::move(input.statistics);
    saved.input_columns = input.value.size(1);
    at::Tensor y =
        compute_result(call, input.value, call.has_residual ? tensors[call.num_inputs] : at::Tensor(), saved);
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

const BorderedWeights* LinearGroup::find_border() const {
  return bordered_weights && bordered_weights->holds(adapters()) ? &*bordered_weights : nullptr;
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
                        .border = group->find_border(),
                        .can_border_weights = GroupWeights::can_have_border(*group),
                        .has_residual = residual.defined(),
                        .returns_residual_stream = returns_residual_stream,
                        .has_dropout = std::ranges::any_of(group->adapters(), &LoraAdapter::is_dropout_active),
                        .saves_hidden = at::GradMode::is_enabled(),
                        .needs_gradient = is_grad_needed()};
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
