#include "vlmtrain/engine/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <string_view>
#include <tuple>

#include "engine/compressed_states.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/memory/place.h"

namespace vlmtrain::engine {

/// The fp32 sum of a parameter's gradients.
struct AdamW::GradientSum {
  at::Tensor total;
  bool received = false;                     // in this step
  std::vector<at::Tensor> by_task = {};      // where tasks are apart; the first is `total`
  std::shared_ptr<const int64_t> task = {};  // that gradients are of

  at::Tensor& of_task() { return by_task.empty() ? total : by_task[static_cast<size_t>(*task)]; }
};

/// Moves a gradient into the sum as soon as the backward pass has made it.
class AdamW::AddToSum : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit AddToSum(std::shared_ptr<GradientSum> sum) : sum_(std::move(sum)) {}

  void operator()(const at::Tensor& parameter) override {
    sum_->received = true;
    sum_->of_task().add_(parameter.grad());
    parameter.mutable_grad().reset();
  }

 private:
  std::shared_ptr<GradientSum> sum_;
};

namespace {

bool compresses(OptimizerStates states, const nn::Parameter& parameter) {
  constexpr int64_t kFewestElements = 4096;
  if (states == OptimizerStates::kFp32 || parameter.elements() < kFewestElements) return false;
  return states != OptimizerStates::k8Bit || !parameter.is_embedding;
}

}  // namespace

struct AdamW::Entry {
  std::string name;
  nn::Component component;
  bool decays;
  at::Tensor weight;  // what the model computes with
  at::Tensor master;  // fp32; the same storage as `weight` if that is fp32
  std::shared_ptr<GradientSum> sum;
  at::Tensor first_moment;  // fp32; undefined where it is compressed
  at::Tensor second_moment;
  at::Tensor steps;  // fp32 scalar

  bool is_compressed() const { return !first_moment.defined(); }
  bool has_master() const { return weight.scalar_type() != at::kFloat; }

  /// Undefined if there was none in this step.
  at::Tensor gradient() const { return sum->received ? sum->total : at::Tensor(); }
};

double LearningRates::of(nn::Component component) const {
  switch (component) {
    case nn::Component::kVisionTower:
      return vision_tower;
    case nn::Component::kProjector:
      return projector;
    case nn::Component::kLanguageModel:
      return language_model;
    case nn::Component::kUnused:
      break;
  }
  throw InternalError("unknown component");
}

AdamW::AdamW(const nn::ParameterStore& store, AdamWSettings settings) : settings_(settings) {
  const memory::InComponent states(memory::Component::kOptimizer);
  const auto fp32 = store.options().dtype(at::kFloat);
  if (settings.separate_tasks > 1) make_task_gradients(store);
  for (const auto& parameter : store.all()) {
    if (!parameter.tensor.requires_grad()) continue;
    Entry entry{parameter.name, parameter.component, parameter.tensor.dim() >= 2, parameter.tensor, {}, {}, {}, {}, {}};
    entry.master = parameter.tensor.detach().to(at::kFloat);  // the same storage if that is fp32
    {
      const memory::InComponent sums(memory::Component::kGradients);
      if (task_gradients_) {
        entry.sum = std::make_shared<GradientSum>(task_gradients(entries_.size(), parameter.tensor.sizes()));
      } else {
        entry.sum = std::make_shared<GradientSum>(GradientSum{at::zeros(parameter.tensor.sizes(), fp32)});
      }
    }
    torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, std::make_unique<AddToSum>(entry.sum));
    if (!compresses(settings.states, parameter)) {
      entry.first_moment = at::zeros(parameter.tensor.sizes(), fp32);
      entry.second_moment = at::zeros(parameter.tensor.sizes(), fp32);
    }
    entries_.push_back(std::move(entry));
  }
  if (settings.states != OptimizerStates::kFp32) make_compressed_groups(fp32);
  if (settings.loss_scale) loss_scale_.emplace(*settings.loss_scale, fp32);
  steps_ = at::zeros({static_cast<int64_t>(entries_.size())}, fp32);
  for (size_t i = 0; i < entries_.size(); ++i) entries_[i].steps = steps_.select(0, static_cast<int64_t>(i));
}

void AdamW::make_compressed_groups(const at::TensorOptions& options) {
  std::map<std::pair<nn::Component, bool>, std::vector<size_t>> entries;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].is_compressed()) entries[{entries_[i].component, entries_[i].decays}].push_back(i);
  }
  int64_t most_blocks = 0;
  std::vector<std::vector<int64_t>> elements;
  for (const auto& [key, members] : entries) {
    int64_t blocks = 0;
    auto& sizes = elements.emplace_back();
    for (const size_t entry : members) {
      sizes.push_back(entries_[entry].master.numel());
      blocks += CompressedStates::blocks_of(sizes.back());
    }
    most_blocks = std::max(most_blocks, blocks);
  }
  room_ = std::make_unique<ChunkRoom>(settings_.states, most_blocks, options);
  for (const auto& [key, members] : entries) {
    auto states = std::make_unique<CompressedStates>(elements[compressed_.size()], settings_.states, *room_, options);
    compressed_.push_back({key.first, key.second, members, std::move(states)});
  }
  if (settings_.states == OptimizerStates::kBf16) updates_ = at::zeros({}, at::kLong);
}

void AdamW::make_task_gradients(const nn::ParameterStore& store) {
  const memory::InComponent sums(memory::Component::kGradients);
  std::vector<int64_t> elements;
  for (const auto& parameter : store.all()) {
    if (parameter.tensor.requires_grad()) elements.push_back(parameter.tensor.numel());
  }
  task_gradients_ = std::make_unique<TaskGradients>(settings_.separate_tasks, elements, store.options());
  task_ = std::make_shared<int64_t>(0);
}

AdamW::GradientSum AdamW::task_gradients(size_t entry, at::IntArrayRef sizes) const {
  GradientSum sum;
  for (int64_t task = 0; task < settings_.separate_tasks; ++task) {
    sum.by_task.push_back(task_gradients_->of(task, entry).view(sizes));
  }
  sum.total = sum.by_task.front();
  sum.task = task_;
  return sum;
}

AdamW::~AdamW() {
  for (const auto& entry : entries_) torch::autograd::impl::set_post_acc_grad_hooks(entry.weight, nullptr);
}

PreparedUpdate AdamW::prepare(const at::Tensor& loss) const {
  const at::NoGradGuard no_gradients;
  const memory::InComponent optimizer(memory::Component::kOptimizer);
  PreparedUpdate update;
  std::vector<at::Tensor> gradients;
  for (const auto& entry : entries_) {
    if (const at::Tensor gradient = entry.gradient(); gradient.defined()) gradients.push_back(gradient);
  }
  update.grad_norm = gradients.empty() ? at::zeros({}, steps_.options())
                                       : at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2)), 2);
  // The fused kernel divides the gradients on the fly, by the loss scale and max(1, norm / max_grad_norm).
  if (loss_scale_) {
    update.loss_scale = loss_scale_->value().clone();
    update.grad_norm.div_(update.loss_scale);
    update.divisor = update.loss_scale;
  }
  if (settings_.max_grad_norm > 0) {
    const at::Tensor clipping = update.grad_norm.div(settings_.max_grad_norm).clamp_min_(1.0);
    update.divisor = update.divisor.defined() ? clipping.mul_(update.divisor) : clipping;
  }
  // x − x is 0 for a finite x, else NaN.
  const at::Tensor sum = loss.defined() ? update.grad_norm + loss : update.grad_norm;
  update.skipped = (sum - sum).ne_(0.0);
  if (settings_.states == OptimizerStates::k8Bit) update.skipped_flag = update.skipped.to(at::kBool);
  const at::Tensor increment = 1.0 - update.skipped;
  for (const auto& entry : entries_) {
    if (!entry.sum->received) continue;
    update.steps.push_back(entry.steps);
    update.increments.push_back(increment);
    if (!entry.has_master()) continue;
    update.weights.push_back(entry.weight.detach());
    update.masters.push_back(entry.master);
  }
  add_groups(update);
  add_chunks(update);
  return update;
}

void AdamW::add_groups(PreparedUpdate& update) const {
  std::map<std::pair<nn::Component, bool>, PreparedUpdate::Group> groups;
  for (const auto& entry : entries_) {
    if (!entry.sum->received || entry.is_compressed()) continue;
    PreparedUpdate::Group& group = groups[{entry.component, entry.decays}];
    group.masters.push_back(entry.master);
    group.gradients.push_back(entry.sum->total);
    group.first_moments.push_back(entry.first_moment);
    group.second_moments.push_back(entry.second_moment);
    group.steps.push_back(entry.steps);
  }
  for (auto& [key, group] : groups) {
    std::tie(group.component, group.decays) = key;
    update.groups.push_back(std::move(group));
  }
}

void AdamW::add_chunks(PreparedUpdate& update) const {
  for (const auto& compressed : compressed_) {
    std::vector<bool> received;
    for (const size_t entry : compressed.entries) received.push_back(entries_[entry].sum->received);
    for (auto& chunk : compressed.states->chunks(received)) {
      PreparedUpdate::Group group{.component = compressed.component, .decays = compressed.decays};
      for (const auto& piece : chunk.pieces) {
        const Entry& entry = entries_[compressed.entries[piece.tensor]];
        const auto part = [&piece](const at::Tensor& whole) {
          return whole.view(-1).narrow(0, piece.first, piece.count);
        };
        group.masters.push_back(part(entry.master));
        group.gradients.push_back(part(entry.sum->total));
        group.first_moments.push_back(compressed.states->first_values(piece));
        group.second_moments.push_back(compressed.states->second_values(piece));
        group.steps.push_back(entry.steps);
      }
      group.states = compressed.states.get();
      group.chunk = std::make_shared<const Chunk>(std::move(chunk));
      update.groups.push_back(std::move(group));
    }
  }
}

void AdamW::apply(const PreparedUpdate& update, const LearningRates& rates) {
  const at::NoGradGuard no_gradients;
  const memory::InComponent optimizer(memory::Component::kOptimizer);
  is_whole_ = false;
  if (updates_.defined()) {
    auto& updates = *updates_.mutable_data_ptr<int64_t>();
    room_->scratch.random.set_current_seed(
        stream_seed(settings_.seed, "optimizer states", {static_cast<uint64_t>(updates)}));
    ++updates;
  }
  if (!update.steps.empty()) at::_foreach_add_(update.steps, update.increments);
  const auto divisor = update.divisor.defined() ? std::optional{update.divisor} : std::nullopt;
  for (const auto& group : update.groups) {
    if (group.states != nullptr) group.states->expand(*group.chunk);
    at::_fused_adamw_(group.masters, group.gradients, group.first_moments, group.second_moments,
                      /*max_exp_avg_sqs=*/{}, group.steps, rates.of(group.component), settings_.beta1, settings_.beta2,
                      group.decays ? settings_.weight_decay : 0.0, settings_.epsilon, /*amsgrad=*/false,
                      /*maximize=*/false, divisor, /*found_inf=*/update.skipped);
    if (group.states != nullptr) group.states->compress(*group.chunk, update.skipped_flag);
  }
  if (!update.weights.empty()) at::_foreach_copy_(update.weights, update.masters);
  drop_gradients();
  if (loss_scale_) loss_scale_->update(update.skipped);
  is_whole_ = true;
}

at::Tensor AdamW::step(const LearningRates& rates) {
  const PreparedUpdate update = prepare(/*loss=*/{});
  apply(update, rates);
  return update.grad_norm;
}

at::Tensor AdamW::loss_scale() const {
  return loss_scale_ ? loss_scale_->value() : at::Tensor();
}

void AdamW::refresh_weights() {
  std::vector<at::Tensor> weights, masters;
  for (const auto& entry : entries_) {
    if (!entry.has_master()) continue;
    weights.push_back(entry.weight.detach());
    masters.push_back(entry.master);
  }
  if (!weights.empty()) at::_foreach_copy_(weights, masters);
}

void AdamW::set_task(int64_t task) {
  VLMTRAIN_CHECK(task_ != nullptr && task >= 0 && task < settings_.separate_tasks, "task {} of {}", task,
                 settings_.separate_tasks);
  *task_ = task;
}

void AdamW::resolve_conflicts(uint64_t seed) {
  VLMTRAIN_CHECK(task_gradients_ != nullptr, "gradients are not apart by task");
  const at::NoGradGuard no_gradients;
  const memory::InComponent optimizer(memory::Component::kOptimizer);
  task_gradients_->resolve_conflicts(seed);
}

void AdamW::drop_gradients() {
  std::vector<at::Tensor> received;
  for (auto& entry : entries_) {
    if (entry.sum->received && !task_gradients_) received.push_back(entry.sum->total);
    entry.weight.mutable_grad().reset();
  }
  if (task_gradients_) task_gradients_->set_to_zero();
  if (!received.empty()) at::_foreach_zero_(received);
  for (auto& entry : entries_) entry.sum->received = false;
}

at::Tensor AdamW::gradient(const std::string& name) const {
  for (const auto& entry : entries_) {
    if (entry.name == name) return entry.gradient();
  }
  throw InternalError(fmt::format("{} is not trained", name));
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::state() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors{{"steps", steps_}};
  if (loss_scale_) std::ranges::move(loss_scale_->state(), std::back_inserter(tensors));
  if (updates_.defined()) tensors.emplace_back("updates", updates_);
  for (const auto& entry : entries_) {
    if (!entry.is_compressed()) {
      tensors.emplace_back("first_moment." + entry.name, entry.first_moment);
      tensors.emplace_back("second_moment." + entry.name, entry.second_moment);
    }
    if (entry.has_master()) tensors.emplace_back("master." + entry.name, entry.master);
  }
  for (const auto& compressed : compressed_) {
    for (size_t i = 0; i < compressed.entries.size(); ++i) {
      for (auto& [prefix, tensor] : compressed.states->state(i)) {
        tensors.emplace_back(fmt::format("{}.{}", prefix, entries_[compressed.entries[i]].name), tensor);
      }
    }
  }
  return tensors;
}

void AdamW::load_state(const std::map<std::string, at::Tensor>& saved, const std::string& source) {
  const at::NoGradGuard no_gradients;
  auto own = state();
  for (const auto& entry : entries_) {
    const std::string name = "master." + entry.name;
    if (!entry.has_master() && saved.contains(name)) own.emplace_back(name, entry.master);
  }
  const auto refuse = [&source](const std::string& name, std::string_view problem) {
    throw data_error(
        "{}: {} {}; the run's model, frozen parts, precision and optimizer states must be those that the checkpoint "
        "was made with",
        source, name, problem);
  };
  std::set<std::string_view> own_names;
  for (const auto& [name, tensor] : own) {
    own_names.insert(name);
    const auto found = saved.find(name);
    if (found == saved.end()) refuse(name, "is missing");
    if (found->second.sizes() != tensor.sizes()) refuse(name, "has another shape");
    if (found->second.scalar_type() != tensor.scalar_type()) refuse(name, "has another type");
  }
  for (const auto& [name, tensor] : saved) {
    if (!own_names.contains(name)) refuse(name, "is not one of this run's");
  }
  for (const auto& [name, tensor] : own) tensor.copy_(saved.at(name));
  refresh_weights();
}

CarriedStates AdamW::carry_state(const nn::ParameterStore& store, const std::map<std::string, at::Tensor>& saved,
                                 const std::string& source) {
  const at::NoGradGuard no_gradients;
  std::map<std::string, int64_t> places;  // in the saved steps
  for (const auto& parameter : store.all()) {
    if (saved.contains("first_moment." + parameter.name)) places.emplace(parameter.name, std::ssize(places));
  }
  const auto steps = saved.find("steps");
  if (steps == saved.end() || steps->second.sizes() != at::IntArrayRef{std::ssize(places)}) {
    throw data_error("{}: its steps are not those of its {} moments; copy the checkpoint again", source, places.size());
  }
  const auto fitting = [&saved](const std::string& name, const at::Tensor& tensor) -> const at::Tensor* {
    const auto found = saved.find(name);
    const bool fits = found != saved.end() && found->second.sizes() == tensor.sizes() &&
                      found->second.scalar_type() == tensor.scalar_type();
    return fits ? &found->second : nullptr;
  };
  std::map<std::string, std::vector<std::pair<at::Tensor, const at::Tensor*>>> moments;  // by parameter
  for (const auto& [name, tensor] : state()) {
    const at::Tensor* const found = fitting(name, tensor);
    const size_t dot = name.find('.');
    if (dot != std::string::npos) {
      if (!name.starts_with("master.")) moments[name.substr(dot + 1)].emplace_back(tensor, found);
    } else if (found != nullptr && name != "steps" && (name == "updates" || settings_.loss_scale->dynamic)) {
      tensor.copy_(*found);
    }
  }
  CarriedStates result;
  for (const auto& entry : entries_) {
    if (const auto* const master = fitting("master." + entry.name, entry.master)) entry.master.copy_(*master);
    const auto& own = moments.at(entry.name);
    const auto place = places.find(entry.name);
    if (place == places.end() || std::ranges::any_of(own, [](const auto& pair) { return pair.second == nullptr; })) {
      ++result.anew;
      continue;
    }
    for (const auto& [tensor, found] : own) tensor.copy_(*found);
    entry.steps.copy_(steps->second.select(0, place->second));
    ++result.carried;
  }
  refresh_weights();
  return result;
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::masters() const {
  std::vector<std::pair<std::string, at::Tensor>> masters;
  for (const auto& entry : entries_) masters.emplace_back(entry.name, entry.master);
  return masters;
}

int64_t AdamW::trained_elements() const {
  int64_t elements = 0;
  for (const auto& entry : entries_) elements += entry.master.numel();
  return elements;
}

}  // namespace vlmtrain::engine
