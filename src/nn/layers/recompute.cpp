#include "vlmtrain/nn/layers/recompute.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "nn/attention/attention_kernel.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/layers/activation_offloader.h"
#include "vlmtrain/nn/layers/dropout.h"

namespace vlmtrain::nn {

namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::AutogradContext;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

thread_local bool in_first_forward = false;

/// A guard that marks the first run of a checkpointed block. Its gradients may be needed although
/// they are not recorded.
class FirstForwardGuard {
 public:
  explicit FirstForwardGuard(bool needs_gradients)
      : was_in_first_forward_(std::exchange(in_first_forward, needs_gradients)) {}
  ~FirstForwardGuard() { in_first_forward = was_in_first_forward_; }
  FirstForwardGuard(const FirstForwardGuard&) = delete;
  FirstForwardGuard& operator=(const FirstForwardGuard&) = delete;

 private:
  bool was_in_first_forward_;
};

/// A block with the state of its first run.
struct CheckpointedBlock : torch::CustomClassHolder {
  CheckpointedBlock(BlockFunction function, CheckpointMode mode, ActivationOffloader* activation_offloader)
      : run(std::move(function)), offloader(activation_offloader) {
    if (mode == CheckpointMode::kSelective) selective_checkpoint = std::make_unique<SelectiveCheckpoint>();
  }
  BlockFunction run;
  ActivationOffloader* offloader = nullptr;
  bool is_first_input_differentiable = false;
  std::unique_ptr<ActivationOffloader::SavedTensor> first_input;  // null: not offloaded
  std::unique_ptr<SelectiveCheckpoint> selective_checkpoint;      // null in CheckpointMode::kFull
  DropoutSegments dropout_segments = DropoutScope::current();
};

bool requires_gradient(const at::Tensor& tensor) {
  return tensor.requires_grad();
}

[[noreturn]] void throw_capture_error(const std::string& source) {
  throw InternalError(fmt::format(
      "nn::run_checkpointed: the block reads {}, which requires gradients but is neither one of its inputs nor one of "
      "its parameters, so its gradient would be lost; make it an input, add it to `parameters`, or detach it",
      source));
}

/// A check that a block captured no tensor that requires gradients. Create it before the block
/// runs. If a path of the graph does not end in `differentiable_inputs`, it ends in another leaf or
/// reaches a node that is older than this object; both are captured tensors.
class CapturedTensorCheck {
 public:
  /// Throws InternalError if `outputs` depend on a tensor with gradients other than
  /// `differentiable_inputs`.
  void operator()(const variable_list& outputs, const variable_list& differentiable_inputs) const {
    std::unordered_set<Edge> ends;
    for (const auto& tensor : differentiable_inputs) ends.insert(torch::autograd::impl::gradient_edge(tensor));
    std::unordered_set<const Node*> visited_nodes;
    std::vector<Edge> pending_edges;
    for (const auto& output : outputs) pending_edges.push_back(torch::autograd::impl::gradient_edge(output));
    while (!pending_edges.empty()) {
      const Edge edge = std::move(pending_edges.back());
      pending_edges.pop_back();
      if (!edge.is_valid() || ends.contains(edge)) continue;
      const Node& node = *edge.function;
      if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(&node)) {
        throw_capture_error(fmt::format("a tensor [{}]", fmt::join(leaf->variable.sizes(), ", ")));
      }
      if (is_older(node)) throw_capture_error(fmt::format("a result of {}", node.name()));
      if (visited_nodes.insert(&node).second) {
        pending_edges.insert(pending_edges.end(), node.next_edges().begin(), node.next_edges().end());
      }
    }
  }

 private:
  /// Returns whether the node is older than this object. Sequence numbers are per thread. Nodes of
  /// other threads are older, because the backward pass on a GPU has its own thread.
  bool is_older(const Node& node) const {
    return node.thread_id() != thread_id_ || node.sequence_nr() < first_sequence_nr_;
  }

  uint64_t thread_id_ = at::RecordFunction::currentThreadId();
  uint64_t first_sequence_nr_ = at::sequence_number::peek();
};

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<CheckpointedBlock>& block,
                               at::TensorList inputs, at::TensorList parameters) {
    context->set_materialize_grads(false);
    context->saved_data["block"] = c10::IValue::make_capsule(block);
    context->saved_data["num_inputs"] = static_cast<int64_t>(inputs.size());
    variable_list saved = inputs.vec();
    if (block->offloader != nullptr) block->first_input = block->offloader->save(inputs.front());
    if (block->first_input) {
      block->is_first_input_differentiable = inputs.front().requires_grad();
      saved.front().reset();
    }
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    context->save_for_backward(std::move(saved));
    const SelectiveCheckpoint::Scope record_scope(block->selective_checkpoint.get(),
                                                  SelectiveCheckpoint::Mode::kRecord);
    return block->run(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list& output_gradients) {
    const auto block = c10::static_intrusive_pointer_cast<CheckpointedBlock>(context->saved_data["block"].toCapsule());
    // The inputs of the block, then its parameters.
    variable_list tensors = context->get_saved_variables();
    const int64_t num_inputs = context->saved_data["num_inputs"].toInt();
    if (block->first_input) {
      tensors.front() = block->first_input->load().set_requires_grad(block->is_first_input_differentiable);
      block->first_input.reset();
    }
    for (auto& input : std::span(tensors).first(static_cast<size_t>(num_inputs))) {
      const bool needs_gradient = input.requires_grad();
      input = input.detach().set_requires_grad(needs_gradient);
    }

    const CapturedTensorCheck captured_tensor_check;
    variable_list outputs;
    {
      const at::AutoGradMode enable_grad(true);
      const DropoutScope dropout_scope(block->dropout_segments);
      const SelectiveCheckpoint::Scope replay_scope(block->selective_checkpoint.get(),
                                                    SelectiveCheckpoint::Mode::kReplay);
      outputs = block->run({tensors.begin(), tensors.begin() + num_inputs});
    }
    variable_list differentiable_tensors, differentiable_outputs, gradients_of_outputs;
    std::ranges::copy_if(tensors, std::back_inserter(differentiable_tensors), requires_gradient);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!output_gradients[i].defined() || !outputs[i].requires_grad()) continue;
      differentiable_outputs.push_back(outputs[i]);
      gradients_of_outputs.push_back(output_gradients[i]);
    }
    if (differentiable_outputs.empty()) return variable_list(tensors.size() + 1);
    captured_tensor_check(differentiable_outputs, differentiable_tensors);
    const variable_list tensor_gradients =
        torch::autograd::grad(differentiable_outputs, differentiable_tensors, gradients_of_outputs,
                              /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    variable_list gradients{at::Tensor()};  // for the block
    auto next = tensor_gradients.begin();
    for (const auto& tensor : tensors) gradients.push_back(tensor.requires_grad() ? *next++ : at::Tensor());
    return gradients;
  }
};

}  // namespace

std::vector<at::Tensor> run_checkpointed(const BlockFunction& block, const std::vector<at::Tensor>& inputs,
                                         const std::vector<at::Tensor>& parameters, CheckpointMode mode,
                                         ActivationOffloader* offloader) {
  VLMTRAIN_CHECK(std::ranges::all_of(parameters, [](const auto& parameter) { return parameter.is_leaf(); }),
                 "the parameters of a recomputed block must be leaf tensors");
  const FirstForwardGuard first_forward_guard(is_grad_needed());
  if (std::ranges::none_of(inputs, requires_gradient) && std::ranges::none_of(parameters, requires_gradient)) {
    // No backward pass follows that could detect captured tensors.
    std::vector<at::Tensor> outputs = block(inputs);
    if (std::ranges::any_of(outputs, requires_gradient)) throw_capture_error("a tensor");
    return outputs;
  }
  return RecomputeFunction::apply(c10::make_intrusive<CheckpointedBlock>(block, mode, offloader),
                                  at::TensorList(inputs), at::TensorList(parameters));
}

at::Tensor run_checkpointed(const std::function<at::Tensor(const at::Tensor&)>& block, const at::Tensor& input,
                            const std::vector<at::Tensor>& parameters, CheckpointMode mode) {
  const auto run_block = [block](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{block(inputs.front())};
  };
  return run_checkpointed(run_block, std::vector<at::Tensor>{input}, parameters, mode).front();
}

bool is_grad_needed() {
  return at::GradMode::is_enabled() || in_first_forward;
}

}  // namespace vlmtrain::nn
