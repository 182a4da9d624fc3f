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
#include "nn/value_capsule.h"
#include "vlmtrain/nn/layers/dropout.h"
#include "vlmtrain/nn/layers/gradient_sink.h"
#include "vlmtrain/nn/matmul.h"

namespace vlmtrain::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Member = LinearGroup::Member;

/// A call of a group, as its backward pass finds it.
struct LinearCall {
  std::shared_ptr<const LinearGroup> group;
  std::shared_ptr<const FusedPrologue> prologue;  // null: the input is what is read
  size_t inputs = 0;                              // of the operand
  bool has_residual = false;
  bool returns_stream = false;  // the first input does, past the group: a second result
  bool has_dropout = false;     // the adapters do
};
using CallCapsule = ValueCapsule<LinearCall>;
using DropoutCapsule = ValueCapsule<IndependentDropouts>;

/// What autograd keeps of a call, and lets go of as soon as its node is done.
struct SavedState {
  variable_list inputs;
  variable_list statistics;
  variable_list lora_hidden;    // of each adapter scale · dropout(x) Aᵀ, [rows, rank]
  IndependentDropouts dropout;  // of the adapters

  void save(AutogradContext* context) {
    variable_list all;
    std::vector<int64_t> counts;
    variable_list masks{dropout.release_masks()};
    for (const variable_list* list : {&inputs, &statistics, &lora_hidden, &masks}) {
      counts.push_back(std::ssize(*list));
      all.insert(all.end(), list->begin(), list->end());
    }
    context->save_for_backward(std::move(all));
    context->saved_data["counts"] = std::move(counts);
    if (dropout.is_active()) {
      context->saved_data["dropout"] =
          c10::IValue::make_capsule(c10::make_intrusive<DropoutCapsule>(std::move(dropout)));
    }
  }

  static SavedState load(AutogradContext* context) {
    SavedState saved;
    const variable_list all = context->get_saved_variables();
    const auto counts = context->saved_data["counts"].toIntVector();
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
};

/// oneDNN wants what it reads without gaps; cuBLAS reads columns of a wider tensor where they lie.
at::Tensor make_dense(const at::Tensor& matrix) {
  return matrix.is_cuda() || matrix.is_non_overlapping_and_dense() ? matrix : matrix.contiguous();
}

/// scale · a · bᵀ into `out`, which may be columns of a wider tensor.
void store_product(at::Tensor out, const at::Tensor& a, const at::Tensor& b, double scale = 1) {
  if (out.is_cuda()) {
    at::addmm_out(out, out, a, b.t(), /*beta=*/0, /*alpha=*/scale);
    return;
  }
  out.copy_(matmul_transposed(make_dense(a), make_dense(b)));
  if (scale != 1) out.mul_(scale);
}

/// y + a · b, in place.
void add_product(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b) {
  if (y.is_cuda() || y.scalar_type() == at::kFloat) {
    y.addmm_(a, b);
  } else {
    y.add_(matmul_transposed(make_dense(a), make_dense(b.t())));
  }
}

/// x Wᵀ, into y where it is defined. `weights`: of all parts, or none where each is to be asked for its own.
at::Tensor multiply_members(const LinearGroup& group, const std::vector<at::Tensor>& weights, const at::Tensor& x,
                            at::Tensor y) {
  if (!y.defined()) y = at::empty({x.size(0), group.columns()}, x.options());
  for (size_t i = 0; i < group.members.size(); ++i) {
    const Member& member = group.members[i];
    store_product(member.slice(y), x, weights.empty() ? member.weight.values() : weights[i]);
  }
  return y;
}

/// x Wᵀ (+ b) (+ residual) → [rows, out].
at::Tensor multiply_group(const LinearGroup& group, const at::Tensor& x, const at::Tensor& residual) {
  at::Tensor y;
  // Before what is dequantised for it: y may be kept, and would leave a gap of that size behind.
  if (x.is_cuda()) y = at::empty({x.size(0), group.columns()}, x.options());
  const auto weights = group.weights();
  const at::Tensor weight = cat_view(weights);
  const at::Tensor bias = group.merged_bias();
  // What cuBLAS starts from, or adds on its way, takes less than a pass over y of its own.
  if (x.is_cuda() && weight.defined() && bias.defined()) {
    at::addmm_out(y, bias, x, weight.t());
  } else if (x.is_cuda() && weight.defined() && !group.has_bias() && residual.defined()) {
    return at::addmm_out(y, residual, x, weight.t());
  } else {
    if (weight.defined()) {
      y = x.is_cuda() ? at::mm_out(y, x, weight.t()) : matmul_transposed(x, weight);
    } else {
      y = multiply_members(group, weights, x, y);
    }
    if (bias.defined()) y.add_(bias);
  }
  if (group.has_bias() && !bias.defined()) {
    for (const Member& member : group.members) member.slice(y).add_(member.bias);
  }
  return residual.defined() ? y.add_(residual) : y;
}

std::vector<at::Tensor> collect_a(const std::vector<const LoraAdapter*>& adapters) {
  std::vector<at::Tensor> all(adapters.size());
  std::ranges::transform(adapters, all.begin(), &LoraAdapter::a);
  return all;
}

/// A's of adapters, [sum of ranks, in], where they lie end to end.
at::Tensor merge_a(const std::vector<const LoraAdapter*>& adapters) {
  return cat_view(collect_a(adapters));
}

int64_t compute_total_rank(const std::vector<const LoraAdapter*>& adapters) {
  int64_t ranks = 0;
  for (const LoraAdapter* adapter : adapters) ranks += adapter->rank();
  return ranks;
}

/// What has the sum of ranks in `dimension` as one tensor an adapter.
variable_list split_by_adapter(const at::Tensor& all, int64_t dimension,
                               const std::vector<const LoraAdapter*>& adapters) {
  std::vector<int64_t> ranks(adapters.size());
  std::ranges::transform(adapters, ranks.begin(), &LoraAdapter::rank);
  return all.split_with_sizes(ranks, dimension);
}

/// Adds what the adapters of a group make of x to y, and fills in what is kept of them.
void add_adapters(const LinearGroup& group, bool has_dropout, const at::Tensor& x, const at::Tensor& y,
                  SavedState& saved) {
  const auto adapters = group.adapters();
  if (adapters.empty()) return;
  const at::Tensor lora_hidden = at::empty({x.size(0), compute_total_rank(adapters)}, x.options());
  saved.lora_hidden = split_by_adapter(lora_hidden, 1, adapters);
  const at::Tensor a = merge_a(adapters);
  const auto project_down = [&](int64_t consumer, const at::Tensor& consumer_input) {
    const auto i = static_cast<size_t>(consumer);
    store_product(saved.lora_hidden[i], consumer_input, adapters[i]->a(), adapters[i]->scale());
  };
  if (has_dropout) {
    saved.dropout = adapters.front()->make_dropout(x, std::ssize(adapters));
    saved.dropout.apply(x, project_down);
  } else if (a.defined()) {
    store_product(lora_hidden, x, a, adapters.front()->scale());
  } else {
    for (int64_t i = 0; i < std::ssize(adapters); ++i) project_down(i, x);
  }
  auto next = saved.lora_hidden.begin();
  for (const Member& member : group.members) {
    if (member.adapter) add_product(member.slice(y), *next++, member.adapter->b().t());
  }
}

/// The backward pass of a call.
class LinearBackward {
 public:
  LinearBackward(const LinearCall& call, SavedState saved, const at::Tensor& gradient, std::vector<bool> needs_grad)
      : group_(*call.group),
        prologue_(call.prologue.get()),
        saved_(std::move(saved)),
        gradient_(gradient.contiguous()),
        needs_grad_(std::move(needs_grad)),
        adapters_(group_.adapters()) {
    if (needs_value()) {
      prologue_output_ = prologue_ != nullptr ? prologue_->forward(saved_.inputs, /*for_backward=*/true)
                                              : FusedPrologue::Output{.value = saved_.inputs.front()};
    } else {
      prologue_output_.statistics = saved_.statistics;
    }
    if (!adapters_.empty()) project_gradient();
  }

  /// In the order of Call's tensors. `stream_gradient`, where it is defined, is added to the first input's.
  variable_list gradients(bool has_residual, const at::Tensor& stream_gradient) {
    variable_list parameter_gradients = compute_parameter_gradients();
    prologue_output_.value.reset();
    variable_list result = compute_input_gradients(stream_gradient);
    if (has_residual) result.push_back(gradient_);
    std::ranges::move(parameter_gradients, std::back_inserter(result));
    return result;
  }

 private:
  bool needs_value() const {
    return std::ranges::any_of(group_.members, &Member::trains_weight) ||
           std::ranges::any_of(adapters_, [](const LoraAdapter* adapter) { return adapter->a().requires_grad(); });
  }

  /// Of each adapter scale · gradient · B, [rows, rank].
  void project_gradient() {
    all_lora_gradients_ = at::empty({gradient_.size(0), compute_total_rank(adapters_)}, gradient_.options());
    lora_gradients_ = split_by_adapter(all_lora_gradients_, 1, adapters_);
    auto next = lora_gradients_.begin();
    for (const Member& member : group_.members) {
      if (!member.adapter) continue;
      store_product(*next++, member.slice(gradient_), member.adapter->b().t(), member.adapter->scale());
    }
  }

  variable_list compute_parameter_gradients() const {
    const auto weight_gradients = compute_weight_gradients();
    const at::Tensor bias_gradient =
        std::ranges::any_of(group_.members, &Member::trains_bias) ? gradient_.sum(0) : at::Tensor();
    const auto a_gradients = compute_a_gradients();
    variable_list result;
    size_t adapter = 0;
    for (size_t i = 0; i < group_.members.size(); ++i) {
      const Member& member = group_.members[i];
      if (member.trains_weight()) result.push_back(weight_gradients[i]);
      if (member.trains_bias()) result.push_back(bias_gradient.narrow(0, member.first_column, member.columns));
      if (!member.adapter) continue;
      if (member.adapter->a().requires_grad()) result.push_back(a_gradients[adapter]);
      if (member.adapter->b().requires_grad()) {
        result.push_back(accumulate_or_multiply({member.adapter->b()}, make_dense(member.slice(gradient_).t()),
                                                make_dense(saved_.lora_hidden[adapter].t())));
      }
      ++adapter;
    }
    return result;
  }

  /// The gradients of these, one behind the other, a · bᵀ; undefined where it went where they are summed.
  static at::Tensor accumulate_or_multiply(const variable_list& parameters, const at::Tensor& a, const at::Tensor& b) {
    return add_product_to_sums(parameters, a, b) ? at::Tensor() : matmul_transposed(a, b);
  }

  /// One a part; undefined where it is not trained, or was summed.
  variable_list compute_weight_gradients() const {
    variable_list result(group_.members.size());
    if (std::ranges::all_of(group_.members, &Member::trains_weight)) {
      variable_list weights(group_.members.size());
      std::ranges::transform(group_.members, weights.begin(),
                             [](const Member& member) { return member.weight.values(); });
      const at::Tensor all = accumulate_or_multiply(weights, gradient_.t(), prologue_output_.value.t());
      for (size_t i = 0; all.defined() && i < result.size(); ++i) {
        result[i] = all.narrow(0, group_.members[i].first_column, group_.members[i].columns);
      }
      return result;
    }
    for (size_t i = 0; i < result.size(); ++i) {
      const Member& member = group_.members[i];
      if (!member.trains_weight()) continue;
      result[i] = accumulate_or_multiply({member.weight.values()}, make_dense(member.slice(gradient_).t()),
                                         prologue_output_.value.t());
    }
    return result;
  }

  /// One an adapter; undefined where it is not trained, or was summed.
  variable_list compute_a_gradients() const {
    variable_list result;
    if (adapters_.empty() || !prologue_output_.value.defined()) return result;
    if (!saved_.dropout.is_active()) {
      const at::Tensor product =
          accumulate_or_multiply(collect_a(adapters_), all_lora_gradients_.t(), prologue_output_.value.t());
      return product.defined() ? split_by_adapter(product, 0, adapters_) : variable_list(adapters_.size());
    }
    saved_.dropout.apply(prologue_output_.value, [&](int64_t consumer, const at::Tensor& consumer_input) {
      const auto i = static_cast<size_t>(consumer);
      result.push_back(
          accumulate_or_multiply({adapters_[i]->a()}, make_dense(lora_gradients_[i].t()), consumer_input.t()));
    });
    return result;
  }

  variable_list compute_input_gradients(const at::Tensor& stream_gradient) const {
    if (std::ranges::none_of(needs_grad_, std::identity())) return variable_list(needs_grad_.size());
    const at::Tensor value_gradient = compute_value_gradient();
    if (prologue_ == nullptr) return {value_gradient};
    if (stream_gradient.defined() && needs_grad_.front())
      return prologue_->backward_with_stream(saved_.inputs, prologue_output_, value_gradient, needs_grad_,
                                             stream_gradient);
    return prologue_->backward(saved_.inputs, prologue_output_, value_gradient, needs_grad_);
  }

  /// gradient · W. What is dequantised for it is gone when it returns.
  at::Tensor multiply_weight() const {
    const auto weights = group_.weights();
    const at::Tensor weight = cat_view(weights);
    if (weight.defined()) return matmul_transposed(gradient_, weight.t());
    at::Tensor result;
    for (size_t i = 0; i < group_.members.size(); ++i) {
      const Member& member = group_.members[i];
      const at::Tensor values = weights.empty() ? member.weight.values().detach() : weights[i];
      if (i == 0) {
        result = matmul_transposed(make_dense(member.slice(gradient_)), values.t());
      } else {
        add_product(result, member.slice(gradient_), values);
      }
    }
    return result;
  }

  at::Tensor compute_value_gradient() const {
    at::Tensor result = multiply_weight();
    if (adapters_.empty()) return result;
    if (saved_.dropout.is_active()) {
      saved_.dropout.add_gradients(result, [&](int64_t consumer, const at::Tensor& output) {
        const auto i = static_cast<size_t>(consumer);
        const at::Tensor a = adapters_[i]->a().t();
        if (!output.defined()) return matmul_transposed(make_dense(lora_gradients_[i]), a);
        store_product(output, lora_gradients_[i], a);
        return output;
      });
      return result;
    }
    const at::Tensor a = merge_a(adapters_);
    if (a.defined()) {
      add_product(result, all_lora_gradients_, a);
      return result;
    }
    for (size_t i = 0; i < adapters_.size(); ++i) add_product(result, lora_gradients_[i], adapters_[i]->a());
    return result;
  }

  const LinearGroup& group_;
  const FusedPrologue* prologue_;
  SavedState saved_;
  at::Tensor gradient_;           // [rows, out]
  std::vector<bool> needs_grad_;  // which of the inputs' gradients
  std::vector<const LoraAdapter*> adapters_;
  FusedPrologue::Output prologue_output_;
  at::Tensor all_lora_gradients_;
  variable_list lora_gradients_;  // views of it, one an adapter
};

struct LinearGroupFunction : torch::autograd::Function<LinearGroupFunction> {
  /// `tensors`: the operand's inputs, the residual, and what is trained of the group, in the order of its parts:
  /// weight, bias, A, B.
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<CallCapsule>& capsule,
                               at::TensorList tensors) {
    const LinearCall& call = capsule->value;
    SavedState saved{.inputs = tensors.slice(0, call.inputs).vec(), .statistics = {}, .lora_hidden = {}, .dropout = {}};
    FusedPrologue::Output prologue_output = call.prologue ? call.prologue->forward(saved.inputs, /*for_backward=*/false)
                                                          : FusedPrologue::Output{.value = saved.inputs.front()};
    saved.statistics = std::move(prologue_output.statistics);
    at::Tensor y =
        multiply_group(*call.group, prologue_output.value, call.has_residual ? tensors[call.inputs] : at::Tensor());
    add_adapters(*call.group, call.has_dropout, prologue_output.value, y, saved);
    saved.save(context);
    context->saved_data["call"] = c10::IValue::make_capsule(capsule);
    context->saved_data["tensors"] = static_cast<int64_t>(tensors.size());
    context->set_materialize_grads(false);
    if (call.returns_stream) return {std::move(y), saved.inputs.front()};
    return {std::move(y)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto capsule = c10::static_intrusive_pointer_cast<CallCapsule>(context->saved_data["call"].toCapsule());
    const LinearCall& call = capsule->value;
    std::vector<bool> needs_grad;
    for (size_t i = 0; i < call.inputs; ++i) needs_grad.push_back(context->needs_input_grad(i));
    const at::Tensor stream_gradient = call.returns_stream ? gradients[1] : at::Tensor();
    if (!gradients[0].defined()) return make_stream_gradients(context, stream_gradient);
    LinearBackward pass(call, SavedState::load(context), gradients[0], std::move(needs_grad));
    variable_list result = pass.gradients(call.has_residual, stream_gradient);
    result.insert(result.begin(), at::Tensor());  // of the call
    return result;
  }

 private:
  /// Of a group whose own result nobody used.
  static variable_list make_stream_gradients(AutogradContext* context, const at::Tensor& stream_gradient) {
    constexpr size_t kCall = 1;
    variable_list result(kCall + static_cast<size_t>(context->saved_data["tensors"].toInt()));
    result[kCall] = stream_gradient;
    return result;
  }
};

/// What is trained of a group, in the order of Apply::forward.
void append_trainable(const LinearGroup& group, std::vector<at::Tensor>& tensors) {
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

std::vector<at::Tensor> LinearGroup::weights() const {
  if (members.size() == 1) return {members.front().weight.values().detach()};
  std::vector<at::Tensor> tensors;
  std::vector<std::shared_ptr<const QuantizedWeight>> quantized;
  for (const Member& member : members) {
    if (member.weight.is_quantized()) {
      quantized.push_back(member.weight.quantized());
    } else {
      tensors.push_back(member.weight.values().detach());
    }
  }
  if (quantized.empty()) return tensors;
  return tensors.empty() ? dequantize_group(quantized) : std::vector<at::Tensor>();
}

at::Tensor LinearGroup::merged_bias() const {
  if (!has_bias()) return {};
  std::vector<at::Tensor> biases;
  for (const Member& member : members) biases.push_back(member.bias);
  return cat_view(biases);
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
                                 const at::Tensor& residual, bool returns_stream) {
  std::vector<at::Tensor> tensors = x.inputs();
  if (residual.defined()) tensors.push_back(residual);
  append_trainable(*group, tensors);
  // Whether gradients are wanted cannot be seen inside of the Function, which records none.
  const LinearCall call{.group = group,
                        .prologue = x.prologue(),
                        .inputs = x.inputs().size(),
                        .has_residual = residual.defined(),
                        .returns_stream = returns_stream,
                        .has_dropout = std::ranges::any_of(group->adapters(), &LoraAdapter::is_dropout_active)};
  return LinearGroupFunction::apply(c10::make_intrusive<CallCapsule>(call), at::TensorList(tensors));
}

}  // namespace

at::Tensor apply_linear_group(const std::shared_ptr<const LinearGroup>& group, const LinearInput& x,
                              const at::Tensor& residual) {
  return apply_linear_group(group, x, residual, /*returns_stream=*/false).front();
}

Branch apply_linear_branch(const std::shared_ptr<const LinearGroup>& group, const LinearInput& x) {
  auto results = apply_linear_group(group, x, /*residual=*/{}, /*returns_stream=*/true);
  return {std::move(results[0]), std::move(results[1])};
}

}  // namespace vlmtrain::nn
