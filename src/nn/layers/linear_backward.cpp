#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

#include "nn/adjacent_tensors.h"
#include "nn/layers/group_weights.h"
#include "nn/layers/linear_group.h"
#include "nn/value_capsule.h"
#include "vlmtrain/kernels/rows.h"
#include "vlmtrain/nn/layers/matmul.h"
#include "vlmtrain/nn/weights/row_alignment.h"

namespace vlmtrain::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Member = LinearGroup::Member;
using DropoutCapsule = ValueCapsule<IndependentDropouts>;

/// Returns the A of each adapter, [rank, in].
std::vector<at::Tensor> collect_lora_a(const std::vector<const LoraAdapter*>& adapters) {
  std::vector<at::Tensor> all(adapters.size());
  std::ranges::transform(adapters, all.begin(), &LoraAdapter::a);
  return all;
}

}  // namespace

void LinearSavedState::save(AutogradContext* context) {
  variable_list all;
  std::vector<int64_t> counts;
  variable_list masks{dropout.take_masks()};
  for (const variable_list* list : {&inputs, &statistics, &lora_hidden, &masks}) {
    counts.push_back(std::ssize(*list));
    all.insert(all.end(), list->begin(), list->end());
  }
  context->save_for_backward(std::move(all));
  context->saved_data["counts"] = std::move(counts);
  context->saved_data["input_columns"] = input_columns;
  if (dropout.is_active()) {
    context->saved_data["dropout"] = c10::IValue::make_capsule(c10::make_intrusive<DropoutCapsule>(std::move(dropout)));
  }
}

LinearSavedState LinearSavedState::load(AutogradContext* context) {
  LinearSavedState saved;
  const variable_list all = context->get_saved_variables();
  const auto counts = context->saved_data["counts"].toIntVector();
  saved.input_columns = context->saved_data["input_columns"].toInt();
  auto next = all.begin();
  auto count = counts.begin();
  variable_list masks;
  for (variable_list* list : {&saved.inputs, &saved.statistics, &saved.lora_hidden, &masks}) {
    list->assign(next, next + *count);
    next += *count++;
  }
  if (const auto capsule = context->saved_data.find("dropout"); capsule != context->saved_data.end()) {
    saved.dropout = c10::static_intrusive_pointer_cast<DropoutCapsule>(capsule->second.toCapsule())->value;
    saved.dropout.set_masks(masks.front());
  }
  return saved;
}

LoraProjections::LoraProjections(const std::vector<const LoraAdapter*>& adapters, int64_t rows,
                                 const at::TensorOptions& options, at::Tensor matrix)
    : merged(std::move(matrix)) {
  std::vector<int64_t> widths;
  for (const LoraAdapter* adapter : adapters) {
    widths.push_back(align_width(adapter->rank(), options));
    has_padding_columns |= widths.back() != adapter->rank();
  }
  if (!merged.defined()) merged = at::empty({rows, std::reduce(widths.begin(), widths.end())}, options);
  by_adapter = merged.split_with_sizes(widths, 1);
  for (size_t i = 0; i < adapters.size(); ++i) by_adapter[i] = by_adapter[i].narrow(1, 0, adapters[i]->rank());
}

at::Tensor make_merged_lora_a(const std::vector<const LoraAdapter*>& adapters, int64_t columns) {
  const at::Tensor a = view_adjacent_tensors(collect_lora_a(adapters));
  return a.defined() ? pad_columns(a, columns) : a;
}

at::Tensor make_projections_a(const BorderedWeights* border, const std::vector<const LoraAdapter*>& adapters,
                              const LoraProjections& projections, int64_t columns) {
  if (border != nullptr) return border->a().narrow(1, 0, columns);
  return projections.has_padding_columns ? at::Tensor() : make_merged_lora_a(adapters, columns);
}

at::Tensor make_padded_lora_a(const LoraAdapter& adapter, int64_t columns) {
  return make_merged_lora_a({&adapter}, columns);
}

at::Tensor make_aligned_lora_b(const LoraAdapter& adapter) {
  at::Tensor b = adapter.b().detach();
  if (align_width(b.size(1), b.options()) == b.size(1)) return b;
  return allocate_aligned_rows(b.size(0), b.size(1), b.options()).copy_(b);
}

LinearBackward::LinearBackward(const LinearGroup& group, const FusedPrologue* prologue, LinearSavedState saved,
                               const at::Tensor& gradient, std::vector<bool> needs_grad)
    : linear_group_(group),
      prologue_(prologue),
      saved_state_(std::move(saved)),
      gradient_(kernels::get_border_columns(gradient) > 0 ? gradient : gradient.contiguous()),
      needs_grad_(std::move(needs_grad)),
      adapters_(linear_group_.adapters()),
      border_(linear_group_.find_border()),
      has_gradient_border_(can_use_gradient_border()) {
  if (needs_input_value()) {
    prologue_output_ = prologue_ != nullptr ? prologue_->forward(saved_state_.inputs, /*for_backward=*/true)
                                            : FusedPrologue::Output{.value = saved_state_.inputs.front()};
  } else {
    prologue_output_.statistics = saved_state_.statistics;
  }
  if (!adapters_.empty()) compute_projected_gradients();
}

variable_list LinearBackward::compute_gradients(bool has_residual, const at::Tensor& residual_stream_gradient) {
  variable_list parameter_gradients = compute_parameter_gradients();
  prologue_output_.value.reset();
  variable_list result = compute_input_gradients(residual_stream_gradient);
  if (has_residual) result.push_back(gradient_);
  std::ranges::move(parameter_gradients, std::back_inserter(result));
  return result;
}

bool LinearBackward::needs_input_value() const {
  return std::ranges::any_of(linear_group_.members, &Member::trains_weight) ||
         std::ranges::any_of(adapters_, [](const LoraAdapter* adapter) { return adapter->a().requires_grad(); });
}

void LinearBackward::compute_projected_gradients() {
  const at::Tensor border = has_gradient_border_ ? kernels::view_with_border(gradient_).narrow(
                                                       1, gradient_.size(1), border_->border_columns())
                                                 : at::Tensor();
  gradient_projections_ = LoraProjections(adapters_, gradient_.size(0), gradient_.options(), border);
  if (border_ != nullptr) {
    matmul_transposed_out(gradient_projections_.merged, gradient_, border_->b().t(), adapters_.front()->scale());
    return;
  }
  auto next = gradient_projections_.by_adapter.begin();
  for (const Member& member : linear_group_.members) {
    if (!member.adapter) continue;
    matmul_transposed_out(*next++, member.slice_columns(gradient_), make_aligned_lora_b(*member.adapter).t(),
                          member.adapter->scale());
  }
}

variable_list LinearBackward::compute_parameter_gradients() const {
  const auto weight_gradients = compute_weight_gradients();
  const at::Tensor bias_gradient =
      std::ranges::any_of(linear_group_.members, &Member::trains_bias) ? gradient_.sum(0) : at::Tensor();
  const auto lora_a_gradients = compute_lora_a_gradients();
  variable_list result;
  size_t adapter_index = 0;
  for (size_t i = 0; i < linear_group_.members.size(); ++i) {
    const Member& member = linear_group_.members[i];
    if (member.trains_weight()) result.push_back(weight_gradients[i]);
    if (member.trains_bias()) result.push_back(bias_gradient.narrow(0, member.first_column, member.columns));
    if (!member.adapter) continue;
    if (member.adapter->a().requires_grad()) result.push_back(lora_a_gradients[adapter_index]);
    if (member.adapter->b().requires_grad()) {
      result.push_back(accumulate_or_return_gradient({member.adapter->b()},
                                                     make_dense(member.slice_columns(gradient_).t()),
                                                     make_dense(saved_state_.lora_hidden[adapter_index].t())));
    }
    ++adapter_index;
  }
  return result;
}

at::Tensor LinearBackward::accumulate_or_return_gradient(const variable_list& parameters, const at::Tensor& a,
                                                         const at::Tensor& b) {
  return add_product_to_gradient_sums(parameters, a, b) ? at::Tensor() : matmul_transposed(a, b);
}

variable_list LinearBackward::compute_weight_gradients() const {
  variable_list result(linear_group_.members.size());
  if (std::ranges::none_of(linear_group_.members, &Member::trains_weight)) return result;
  const at::Tensor input = prologue_output_.value.narrow(1, 0, linear_group_.in_features);
  if (std::ranges::all_of(linear_group_.members, &Member::trains_weight) && !linear_group_.has_padding_columns()) {
    variable_list weights(linear_group_.members.size());
    std::ranges::transform(linear_group_.members, weights.begin(),
                           [](const Member& member) { return member.weight.values(); });
    const at::Tensor all = accumulate_or_return_gradient(weights, gradient_.t(), input.t());
    for (size_t i = 0; all.defined() && i < result.size(); ++i) {
      result[i] = all.narrow(0, linear_group_.members[i].first_column, linear_group_.members[i].columns);
    }
    return result;
  }
  for (size_t i = 0; i < result.size(); ++i) {
    const Member& member = linear_group_.members[i];
    if (!member.trains_weight()) continue;
    result[i] = accumulate_or_return_gradient({member.weight.values()}, make_dense(member.slice_columns(gradient_).t()),
                                              input.t());
  }
  return result;
}

variable_list LinearBackward::compute_lora_a_gradients() const {
  variable_list result;
  if (adapters_.empty() || !prologue_output_.value.defined()) return result;
  const auto compute_gradient = [&](int64_t consumer, const at::Tensor& consumer_input) {
    const auto i = static_cast<size_t>(consumer);
    result.push_back(accumulate_or_return_gradient({adapters_[i]->a()},
                                                   make_dense(gradient_projections_.by_adapter[i].t()),
                                                   consumer_input.narrow(1, 0, linear_group_.in_features).t()));
  };
  if (saved_state_.dropout.is_active()) {
    saved_state_.dropout.apply(prologue_output_.value, compute_gradient);
  } else if (gradient_projections_.has_padding_columns) {
    for (int64_t i = 0; i < std::ssize(adapters_); ++i) compute_gradient(i, prologue_output_.value);
  } else {
    const at::Tensor product =
        accumulate_or_return_gradient(collect_lora_a(adapters_), gradient_projections_.merged.t(),
                                      prologue_output_.value.narrow(1, 0, linear_group_.in_features).t());
    if (!product.defined()) return variable_list(adapters_.size());
    std::vector<int64_t> ranks(adapters_.size());
    std::ranges::transform(adapters_, ranks.begin(), &LoraAdapter::rank);
    return product.split_with_sizes(ranks);
  }
  return result;
}

variable_list LinearBackward::compute_input_gradients(const at::Tensor& residual_stream_gradient) const {
  if (std::ranges::none_of(needs_grad_, std::identity())) return variable_list(needs_grad_.size());
  const at::Tensor value_gradient = compute_input_value_gradient();
  if (prologue_ == nullptr) return {value_gradient};
  if (residual_stream_gradient.defined() && needs_grad_.front())
    return prologue_->backward_add_residual_gradient(saved_state_.inputs, prologue_output_, value_gradient, needs_grad_,
                                                     residual_stream_gradient);
  return prologue_->backward(saved_state_.inputs, prologue_output_, value_gradient, needs_grad_);
}

bool LinearBackward::can_use_gradient_border() const {
  return border_ != nullptr && kernels::get_border_columns(gradient_) == border_->border_columns() &&
         border_->input_columns() == saved_state_.input_columns && !saved_state_.dropout.is_active() &&
         GroupWeights::can_have_border(linear_group_);
}

at::Tensor LinearBackward::multiply_gradient_by_weight(WeightBorder border) const {
  const GroupWeights weights(linear_group_, saved_state_.input_columns, border);
  const at::Tensor gradient = border == WeightBorder::kA ? kernels::view_with_border(gradient_) : gradient_;
  if (weights.merged().defined()) return matmul_transposed(gradient, weights.merged().t());
  at::Tensor result;
  for (size_t i = 0; i < linear_group_.members.size(); ++i) {
    const Member& member = linear_group_.members[i];
    const at::Tensor values = weights.member(i);
    if (i == 0) {
      result = matmul_transposed(make_dense(member.slice_columns(gradient_)), values.t());
    } else {
      addmm_in_place(result, member.slice_columns(gradient_), values);
    }
  }
  return result;
}

at::Tensor LinearBackward::compute_input_value_gradient() const {
  if (has_gradient_border_) return multiply_gradient_by_weight(WeightBorder::kA);
  at::Tensor result = multiply_gradient_by_weight(WeightBorder::kNone);
  if (adapters_.empty()) return result;
  if (saved_state_.dropout.is_active()) {
    saved_state_.dropout.add_consumer_gradients(result, [&](int64_t consumer, const at::Tensor& output) {
      const auto i = static_cast<size_t>(consumer);
      const at::Tensor a = make_padded_lora_a(*adapters_[i], saved_state_.input_columns).t();
      if (!output.defined()) return matmul_transposed(make_dense(gradient_projections_.by_adapter[i]), a);
      matmul_transposed_out(output, gradient_projections_.by_adapter[i], a);
      return output;
    });
    return result;
  }
  const at::Tensor a = make_projections_a(border_, adapters_, gradient_projections_, saved_state_.input_columns);
  if (a.defined()) {
    addmm_in_place(result, gradient_projections_.merged, a);
    return result;
  }
  for (size_t i = 0; i < adapters_.size(); ++i) {
    addmm_in_place(result, gradient_projections_.by_adapter[i],
                   make_padded_lora_a(*adapters_[i], saved_state_.input_columns));
  }
  return result;
}

}  // namespace vlmtrain::nn
