#include "nn/linear_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "nn/held.h"
#include "nn/stack.h"
#include "vlmtrain/nn/dropout.h"
#include "vlmtrain/nn/gradient_sink.h"
#include "vlmtrain/nn/matmul.h"

namespace vlmtrain::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Part = LinearGroup::Part;

/// A call of a group, as its backward pass finds it.
struct Call {
  std::shared_ptr<const LinearGroup> group;
  std::shared_ptr<const Prologue> prologue;  // null: the input is what is read
  size_t inputs = 0;                         // of the operand
  bool has_residual = false;
  bool goes_on = false;  // the first input does, past the group: a second result
  bool drops = false;    // the adapters do
};
using HeldCall = Held<Call>;
using HeldDropout = Held<ReadersDropout>;

/// What autograd keeps of a call, and lets go of as soon as its node is done.
struct Kept {
  variable_list inputs;
  variable_list statistics;
  variable_list reduced;   // of each adapter scale · dropout(x) Aᵀ, [rows, rank]
  ReadersDropout dropout;  // of the adapters

  void save(AutogradContext* context) {
    variable_list all;
    std::vector<int64_t> counts;
    variable_list masks{dropout.take_masks()};
    for (const variable_list* list : {&inputs, &statistics, &reduced, &masks}) {
      counts.push_back(std::ssize(*list));
      all.insert(all.end(), list->begin(), list->end());
    }
    context->save_for_backward(std::move(all));
    context->saved_data["counts"] = std::move(counts);
    if (dropout.drops()) {
      context->saved_data["dropout"] = c10::IValue::make_capsule(c10::make_intrusive<HeldDropout>(std::move(dropout)));
    }
  }

  static Kept of(AutogradContext* context) {
    Kept kept;
    const variable_list all = context->get_saved_variables();
    const auto counts = context->saved_data["counts"].toIntVector();
    auto next = all.begin();
    auto count = counts.begin();
    variable_list masks;
    for (variable_list* list : {&kept.inputs, &kept.statistics, &kept.reduced, &masks}) {
      list->assign(next, next + *count);
      next += *count++;
    }
    if (const auto held = context->saved_data.find("dropout"); held != context->saved_data.end()) {
      kept.dropout = c10::static_intrusive_pointer_cast<HeldDropout>(held->second.toCapsule())->value;
      kept.dropout.give_masks(masks.front());
    }
    return kept;
  }
};

/// oneDNN wants what it reads without gaps; cuBLAS reads columns of a wider tensor where they lie.
at::Tensor dense(const at::Tensor& matrix) {
  return matrix.is_cuda() || matrix.is_non_overlapping_and_dense() ? matrix : matrix.contiguous();
}

/// scale · a · bᵀ into `out`, which may be columns of a wider tensor.
void product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, double scale = 1) {
  if (out.is_cuda()) {
    at::addmm_out(out, out, a, b.t(), /*beta=*/0, /*alpha=*/scale);
    return;
  }
  out.copy_(matmul_transposed(dense(a), dense(b)));
  if (scale != 1) out.mul_(scale);
}

/// y + a · b, in place.
void add_product(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b) {
  if (y.is_cuda() || y.scalar_type() == at::kFloat) {
    y.addmm_(a, b);
  } else {
    y.add_(matmul_transposed(dense(a), dense(b.t())));
  }
}

/// x Wᵀ, into y where it is defined. `weights`: of all parts, or none where each is to be asked for its own.
at::Tensor product_part_by_part(const LinearGroup& group, const std::vector<at::Tensor>& weights, const at::Tensor& x,
                                at::Tensor y) {
  if (!y.defined()) y = at::empty({x.size(0), group.columns()}, x.options());
  for (size_t i = 0; i < group.parts.size(); ++i) {
    const Part& part = group.parts[i];
    product_into(part.of(y), x, weights.empty() ? part.weight.values() : weights[i]);
  }
  return y;
}

/// x Wᵀ (+ b) (+ residual) → [rows, out].
at::Tensor product(const LinearGroup& group, const at::Tensor& x, const at::Tensor& residual) {
  at::Tensor y;
  // Before what is dequantised for it: y may be kept, and would leave a gap of that size behind.
  if (x.is_cuda()) y = at::empty({x.size(0), group.columns()}, x.options());
  const auto weights = group.weights();
  const at::Tensor weight = stacked(weights);
  const at::Tensor bias = group.stacked_bias();
  // What cuBLAS starts from, or adds on its way, takes less than a pass over y of its own.
  if (x.is_cuda() && weight.defined() && bias.defined()) {
    at::addmm_out(y, bias, x, weight.t());
  } else if (x.is_cuda() && weight.defined() && !group.has_bias() && residual.defined()) {
    return at::addmm_out(y, residual, x, weight.t());
  } else {
    if (weight.defined()) {
      y = x.is_cuda() ? at::mm_out(y, x, weight.t()) : matmul_transposed(x, weight);
    } else {
      y = product_part_by_part(group, weights, x, y);
    }
    if (bias.defined()) y.add_(bias);
  }
  if (group.has_bias() && !bias.defined()) {
    for (const Part& part : group.parts) part.of(y).add_(part.bias);
  }
  return residual.defined() ? y.add_(residual) : y;
}

std::vector<at::Tensor> a_of(const std::vector<const LoraAdapter*>& adapters) {
  std::vector<at::Tensor> all(adapters.size());
  std::ranges::transform(adapters, all.begin(), &LoraAdapter::a);
  return all;
}

/// A's of adapters, [sum of ranks, in], where they lie end to end.
at::Tensor stacked_a(const std::vector<const LoraAdapter*>& adapters) {
  return stacked(a_of(adapters));
}

int64_t sum_of_ranks(const std::vector<const LoraAdapter*>& adapters) {
  int64_t ranks = 0;
  for (const LoraAdapter* adapter : adapters) ranks += adapter->rank();
  return ranks;
}

/// What has the sum of ranks in `dimension` as one tensor an adapter.
variable_list by_adapter(const at::Tensor& all, int64_t dimension, const std::vector<const LoraAdapter*>& adapters) {
  std::vector<int64_t> ranks(adapters.size());
  std::ranges::transform(adapters, ranks.begin(), &LoraAdapter::rank);
  return all.split_with_sizes(ranks, dimension);
}

/// Adds what the adapters of a group make of x to y, and fills in what is kept of them.
void add_adapters(const LinearGroup& group, bool drops, const at::Tensor& x, const at::Tensor& y, Kept& kept) {
  const auto adapters = group.adapters();
  if (adapters.empty()) return;
  const at::Tensor reduced = at::empty({x.size(0), sum_of_ranks(adapters)}, x.options());
  kept.reduced = by_adapter(reduced, 1, adapters);
  const at::Tensor a = stacked_a(adapters);
  const auto reduce = [&](int64_t reader, const at::Tensor& read) {
    const auto i = static_cast<size_t>(reader);
    product_into(kept.reduced[i], read, adapters[i]->a(), adapters[i]->scale());
  };
  if (drops) {
    kept.dropout = adapters.front()->draw_dropout(x, std::ssize(adapters));
    kept.dropout.drop(x, reduce);
  } else if (a.defined()) {
    product_into(reduced, x, a, adapters.front()->scale());
  } else {
    for (int64_t i = 0; i < std::ssize(adapters); ++i) reduce(i, x);
  }
  auto next = kept.reduced.begin();
  for (const Part& part : group.parts) {
    if (part.adapter) add_product(part.of(y), *next++, part.adapter->b().t());
  }
}

/// The backward pass of a call.
class Backward {
 public:
  Backward(const Call& call, Kept kept, const at::Tensor& gradient, std::vector<bool> wanted)
      : group_(*call.group),
        prologue_(call.prologue.get()),
        kept_(std::move(kept)),
        gradient_(gradient.contiguous()),
        wanted_(std::move(wanted)),
        adapters_(group_.adapters()) {
    if (reads_value()) {
      made_ = prologue_ != nullptr ? prologue_->make(kept_.inputs, /*for_backward=*/true)
                                   : Prologue::Made{.value = kept_.inputs.front()};
    } else {
      made_.statistics = kept_.statistics;
    }
    if (!adapters_.empty()) reduce_gradient();
  }

  /// In the order of Call's tensors. `passing`, where it is defined, is added to the first input's.
  variable_list gradients(bool has_residual, const at::Tensor& passing) {
    variable_list of_parameters = gradients_of_parameters();
    made_.value.reset();
    variable_list result = gradients_of_inputs(passing);
    if (has_residual) result.push_back(gradient_);
    std::ranges::move(of_parameters, std::back_inserter(result));
    return result;
  }

 private:
  bool reads_value() const {
    return std::ranges::any_of(group_.parts, &Part::trains_weight) ||
           std::ranges::any_of(adapters_, [](const LoraAdapter* adapter) { return adapter->a().requires_grad(); });
  }

  /// Of each adapter scale · gradient · B, [rows, rank].
  void reduce_gradient() {
    all_reduced_ = at::empty({gradient_.size(0), sum_of_ranks(adapters_)}, gradient_.options());
    reduced_ = by_adapter(all_reduced_, 1, adapters_);
    auto next = reduced_.begin();
    for (const Part& part : group_.parts) {
      if (!part.adapter) continue;
      product_into(*next++, part.of(gradient_), part.adapter->b().t(), part.adapter->scale());
    }
  }

  variable_list gradients_of_parameters() const {
    const auto of_weights = gradients_of_weights();
    const at::Tensor of_bias = std::ranges::any_of(group_.parts, &Part::trains_bias) ? gradient_.sum(0) : at::Tensor();
    const auto of_a = gradients_of_a();
    variable_list result;
    size_t adapter = 0;
    for (size_t i = 0; i < group_.parts.size(); ++i) {
      const Part& part = group_.parts[i];
      if (part.trains_weight()) result.push_back(of_weights[i]);
      if (part.trains_bias()) result.push_back(of_bias.narrow(0, part.first_column, part.columns));
      if (!part.adapter) continue;
      if (part.adapter->a().requires_grad()) result.push_back(of_a[adapter]);
      if (part.adapter->b().requires_grad()) {
        result.push_back(
            sum_or_product({part.adapter->b()}, dense(part.of(gradient_).t()), dense(kept_.reduced[adapter].t())));
      }
      ++adapter;
    }
    return result;
  }

  /// The gradients of these, one behind the other, a · bᵀ; undefined where it went where they are summed.
  static at::Tensor sum_or_product(const variable_list& parameters, const at::Tensor& a, const at::Tensor& b) {
    return add_product_to_sums(parameters, a, b) ? at::Tensor() : matmul_transposed(a, b);
  }

  /// One a part; undefined where it is not trained, or was summed.
  variable_list gradients_of_weights() const {
    variable_list result(group_.parts.size());
    if (std::ranges::all_of(group_.parts, &Part::trains_weight)) {
      variable_list weights(group_.parts.size());
      std::ranges::transform(group_.parts, weights.begin(), [](const Part& part) { return part.weight.values(); });
      const at::Tensor all = sum_or_product(weights, gradient_.t(), made_.value.t());
      for (size_t i = 0; all.defined() && i < result.size(); ++i) {
        result[i] = all.narrow(0, group_.parts[i].first_column, group_.parts[i].columns);
      }
      return result;
    }
    for (size_t i = 0; i < result.size(); ++i) {
      const Part& part = group_.parts[i];
      if (!part.trains_weight()) continue;
      result[i] = sum_or_product({part.weight.values()}, dense(part.of(gradient_).t()), made_.value.t());
    }
    return result;
  }

  /// One an adapter; undefined where it is not trained, or was summed.
  variable_list gradients_of_a() const {
    variable_list result;
    if (adapters_.empty() || !made_.value.defined()) return result;
    if (!kept_.dropout.drops()) {
      const at::Tensor product = sum_or_product(a_of(adapters_), all_reduced_.t(), made_.value.t());
      return product.defined() ? by_adapter(product, 0, adapters_) : variable_list(adapters_.size());
    }
    kept_.dropout.drop(made_.value, [&](int64_t reader, const at::Tensor& read) {
      const auto i = static_cast<size_t>(reader);
      result.push_back(sum_or_product({adapters_[i]->a()}, dense(reduced_[i].t()), read.t()));
    });
    return result;
  }

  variable_list gradients_of_inputs(const at::Tensor& passing) const {
    if (std::ranges::none_of(wanted_, std::identity())) return variable_list(wanted_.size());
    const at::Tensor of_value = gradient_of_value();
    if (prologue_ == nullptr) return {of_value};
    if (passing.defined() && wanted_.front())
      return prologue_->backward_beside(kept_.inputs, made_, of_value, wanted_, passing);
    return prologue_->backward(kept_.inputs, made_, of_value, wanted_);
  }

  /// gradient · W. What is dequantised for it is gone when it returns.
  at::Tensor product_with_weight() const {
    const auto weights = group_.weights();
    const at::Tensor weight = stacked(weights);
    if (weight.defined()) return matmul_transposed(gradient_, weight.t());
    at::Tensor result;
    for (size_t i = 0; i < group_.parts.size(); ++i) {
      const Part& part = group_.parts[i];
      const at::Tensor values = weights.empty() ? part.weight.values().detach() : weights[i];
      if (i == 0) {
        result = matmul_transposed(dense(part.of(gradient_)), values.t());
      } else {
        add_product(result, part.of(gradient_), values);
      }
    }
    return result;
  }

  at::Tensor gradient_of_value() const {
    at::Tensor result = product_with_weight();
    if (adapters_.empty()) return result;
    if (kept_.dropout.drops()) {
      kept_.dropout.add_gradients(result, [&](int64_t reader, const at::Tensor& place) {
        const auto i = static_cast<size_t>(reader);
        const at::Tensor a = adapters_[i]->a().t();
        if (!place.defined()) return matmul_transposed(dense(reduced_[i]), a);
        product_into(place, reduced_[i], a);
        return place;
      });
      return result;
    }
    const at::Tensor a = stacked_a(adapters_);
    if (a.defined()) {
      add_product(result, all_reduced_, a);
      return result;
    }
    for (size_t i = 0; i < adapters_.size(); ++i) add_product(result, reduced_[i], adapters_[i]->a());
    return result;
  }

  const LinearGroup& group_;
  const Prologue* prologue_;
  Kept kept_;
  at::Tensor gradient_;       // [rows, out]
  std::vector<bool> wanted_;  // which of the inputs' gradients
  std::vector<const LoraAdapter*> adapters_;
  Prologue::Made made_;
  at::Tensor all_reduced_;
  variable_list reduced_;  // views of it, one an adapter
};

struct Apply : torch::autograd::Function<Apply> {
  /// `tensors`: the operand's inputs, the residual, and what is trained of the group, in the order of its parts:
  /// weight, bias, A, B.
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<HeldCall>& held,
                               at::TensorList tensors) {
    const Call& call = held->value;
    Kept kept{.inputs = tensors.slice(0, call.inputs).vec(), .statistics = {}, .reduced = {}, .dropout = {}};
    Prologue::Made made = call.prologue ? call.prologue->make(kept.inputs, /*for_backward=*/false)
                                        : Prologue::Made{.value = kept.inputs.front()};
    kept.statistics = std::move(made.statistics);
    at::Tensor y = product(*call.group, made.value, call.has_residual ? tensors[call.inputs] : at::Tensor());
    add_adapters(*call.group, call.drops, made.value, y, kept);
    kept.save(context);
    context->saved_data["call"] = c10::IValue::make_capsule(held);
    context->saved_data["tensors"] = static_cast<int64_t>(tensors.size());
    context->set_materialize_grads(false);
    if (call.goes_on) return {std::move(y), kept.inputs.front()};
    return {std::move(y)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto held = c10::static_intrusive_pointer_cast<HeldCall>(context->saved_data["call"].toCapsule());
    const Call& call = held->value;
    std::vector<bool> wanted;
    for (size_t i = 0; i < call.inputs; ++i) wanted.push_back(context->needs_input_grad(i));
    const at::Tensor passing = call.goes_on ? gradients[1] : at::Tensor();
    if (!gradients[0].defined()) return only_of_first_input(context, passing);
    Backward pass(call, Kept::of(context), gradients[0], std::move(wanted));
    variable_list result = pass.gradients(call.has_residual, passing);
    result.insert(result.begin(), at::Tensor());  // of the call
    return result;
  }

 private:
  /// Of a group whose own result nobody used.
  static variable_list only_of_first_input(AutogradContext* context, const at::Tensor& passing) {
    constexpr size_t kCall = 1;
    variable_list result(kCall + static_cast<size_t>(context->saved_data["tensors"].toInt()));
    result[kCall] = passing;
    return result;
  }
};

/// What is trained of a group, in the order of Apply::forward.
void append_trained(const LinearGroup& group, std::vector<at::Tensor>& tensors) {
  for (const Part& part : group.parts) {
    if (part.trains_weight()) tensors.push_back(part.weight.values());
    if (part.trains_bias()) tensors.push_back(part.bias);
    if (!part.adapter) continue;
    for (const at::Tensor& tensor : {part.adapter->a(), part.adapter->b()}) {
      if (tensor.requires_grad()) tensors.push_back(tensor);
    }
  }
}

}  // namespace

std::vector<at::Tensor> LinearGroup::weights() const {
  if (parts.size() == 1) return {parts.front().weight.values().detach()};
  std::vector<at::Tensor> tensors;
  std::vector<std::shared_ptr<const QuantizedWeight>> quantized;
  for (const Part& part : parts) {
    if (part.weight.is_quantized()) {
      quantized.push_back(part.weight.quantized());
    } else {
      tensors.push_back(part.weight.values().detach());
    }
  }
  if (quantized.empty()) return tensors;
  return tensors.empty() ? dequantize_together(quantized) : std::vector<at::Tensor>();
}

at::Tensor LinearGroup::stacked_bias() const {
  if (!has_bias()) return {};
  std::vector<at::Tensor> biases;
  for (const Part& part : parts) biases.push_back(part.bias);
  return stacked(biases);
}

std::vector<const LoraAdapter*> LinearGroup::adapters() const {
  std::vector<const LoraAdapter*> found;
  for (const Part& part : parts) {
    if (part.adapter) found.push_back(&*part.adapter);
  }
  return found;
}

bool LinearGroup::has_dora() const {
  return std::ranges::any_of(adapters(), &LoraAdapter::has_dora);
}

namespace {

variable_list apply(const std::shared_ptr<const LinearGroup>& group, const Operand& x, const at::Tensor& residual,
                    bool goes_on) {
  std::vector<at::Tensor> tensors = x.inputs();
  if (residual.defined()) tensors.push_back(residual);
  append_trained(*group, tensors);
  // Whether gradients are wanted cannot be seen inside of the Function, which records none.
  const Call call{.group = group,
                  .prologue = x.prologue(),
                  .inputs = x.inputs().size(),
                  .has_residual = residual.defined(),
                  .goes_on = goes_on,
                  .drops = std::ranges::any_of(group->adapters(), &LoraAdapter::drops)};
  return Apply::apply(c10::make_intrusive<HeldCall>(call), at::TensorList(tensors));
}

}  // namespace

at::Tensor apply(const std::shared_ptr<const LinearGroup>& group, const Operand& x, const at::Tensor& residual) {
  return apply(group, x, residual, /*goes_on=*/false).front();
}

Branch apply_beside(const std::shared_ptr<const LinearGroup>& group, const Operand& x) {
  auto results = apply(group, x, /*residual=*/{}, /*goes_on=*/true);
  return {std::move(results[0]), std::move(results[1])};
}

}  // namespace vlmtrain::nn
