#include "vlmtrain/engine/loss/task_balance.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/engine/gradients/gradient_buckets.h"
#include "vlmtrain/memory/device_copy.h"
#include "vlmtrain/memory/memory_tag.h"

namespace vlmtrain::engine {

namespace {

/// The minimum weight of a task. Keeps GradNorm from disabling a task permanently. The paper has no
/// such minimum; the value was chosen without measurement.
constexpr double kMinTaskWeight = 1e-3;

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// Elements of a chunk of products, per pair of tasks. Smaller chunks need more launches.
constexpr int64_t kProductChunkElements = int64_t{1} << 22;
/// Alignment in elements: 512 bytes, as in the CUDA caching allocator, so that vectorized kernels
/// apply.
constexpr int64_t kSumOffsetAlignment = 128;

/// Returns the aligned offset of each sum if all sums are concatenated, followed by the total size.
std::vector<int64_t> compute_padded_offsets(const GradientBuckets& buckets) {
  std::vector<int64_t> offsets{0};
  for (size_t i = 0; i < buckets.size(); ++i) {
    offsets.push_back(offsets.back() +
                      (buckets.elements(i) + kSumOffsetAlignment - 1) / kSumOffsetAlignment * kSumOffsetAlignment);
  }
  return offsets;
}

/// Computes the elementwise products of the gradient of `group` with itself and with the gradients
/// of all later groups, for the elements from `first` on of all concatenated sums. Writes them to
/// `products` [groups − group, elements]. Products with a missing gradient are not written.
void multiply_group_gradients(const GradientBuckets& buckets, const std::vector<int64_t>& offsets, int64_t first,
                              int64_t group, const at::Tensor& products) {
  std::vector<at::Tensor> targets, group_gradients, other_gradients;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const int64_t start = std::max(first, offsets[i]);
    const int64_t count = std::min(first + products.size(1), offsets[i] + buckets.elements(i)) - start;
    if (count <= 0 || !buckets.has_gradient(i, group)) continue;
    for (int64_t other_group = group; other_group < buckets.num_gradient_groups(); ++other_group) {
      if (!buckets.has_gradient(i, other_group)) continue;
      targets.push_back(products.select(0, other_group - group).narrow(0, start - first, count));
      group_gradients.push_back(buckets.sum(i, group).view(-1).narrow(0, start - offsets[i], count));
      other_gradients.push_back(buckets.sum(i, other_group).view(-1).narrow(0, start - offsets[i], count));
    }
  }
  if (targets.empty()) return;
  at::_foreach_copy_(targets, other_gradients);
  at::_foreach_mul_(targets, group_gradients);
}

/// Returns g_i · g_j as fp64 [groups, groups]. Sums in the store's order, so that the result does
/// not depend on the layout of buckets.
at::Tensor compute_gradient_products(const GradientBuckets& buckets) {
  const int64_t groups = buckets.num_gradient_groups();
  const auto offsets = compute_padded_offsets(buckets);
  const at::Tensor upper_product_triangle = at::zeros({groups, groups}, buckets.options().dtype(at::kDouble));
  for (int64_t first = 0; first < offsets.back(); first += kProductChunkElements) {
    for (int64_t group = 0; group < groups; ++group) {
      const at::Tensor products =
          at::zeros({groups - group, std::min(kProductChunkElements, offsets.back() - first)}, buckets.options());
      multiply_group_gradients(buckets, offsets, first, group, products);
      upper_product_triangle.select(0, group).narrow(0, group, groups - group).add_(products.sum(1));
    }
  }
  return upper_product_triangle + upper_product_triangle.triu(1).t();
}

}  // namespace

std::vector<TaskCounts> count_samples_and_tokens(std::span<const data::Sample> samples, int64_t tasks) {
  std::vector<TaskCounts> counts(static_cast<size_t>(tasks));
  for (const auto& sample : samples) {
    TaskCounts& count = counts.at(static_cast<size_t>(sample.task_index));
    ++count.samples;
    count.label_tokens += sample.label_tokens();
    count.label_weight += sample.label_weight();
  }
  return counts;
}

std::vector<TaskResult> make_task_results(std::span<const double> scalars, const std::vector<TaskCounts>& counts) {
  std::vector<TaskResult> results;
  if (counts.empty()) return results;
  const size_t scalars_per_task = scalars.size() / counts.size();
  VLMTRAIN_CHECK(scalars_per_task * counts.size() == scalars.size() && (scalars_per_task == 2 || scalars_per_task == 3),
                 "{} values do not match {} tasks", scalars.size(), counts.size());
  for (size_t task = 0; task < counts.size(); ++task) {
    const auto values = scalars.subspan(task * scalars_per_task, scalars_per_task);
    TaskResult& result = results.emplace_back(TaskResult{.counts = counts[task]});
    if (counts[task].label_tokens > 0) {
      result.loss = values[0] / counts[task].label_weight;
      result.accuracy = values[1] / static_cast<double>(counts[task].label_tokens);
    }
    if (scalars_per_task == 3) result.gradient_norm = values[2];
  }
  return results;
}

PerTaskLossSums::PerTaskLossSums(const TaskSettings& settings, int64_t features, at::Device device) {
  const memory::ComponentScope loss_scope(memory::Component::kLoss);
  VLMTRAIN_CHECK(settings.weights.empty() || std::ssize(settings.weights) == settings.num_tasks,
                 "{} weights for {} tasks", settings.weights.size(), settings.num_tasks);
  const auto fp32_options = at::TensorOptions(at::kFloat).device(device);
  tasks_ = at::arange(settings.num_tasks, fp32_options.dtype(at::kLong)).unsqueeze(1);
  if (!settings.weights.empty()) {
    weights_ = memory::copy_to_device(at::tensor(settings.weights, at::TensorOptions(at::kFloat)), device);
  }
  sums_ = at::zeros({settings.num_tasks, 2}, fp32_options);
  if (settings.measure_gradient_norms) norm_scale_gradients_ = at::zeros({settings.num_tasks, features}, fp32_options);
}

nn::PerTaskLoss PerTaskLossSums::make_per_task_loss(const at::Tensor& label_task_indices) const {
  return {.task_one_hot = label_task_indices.eq(tasks_).to(at::kFloat),
          .weights = weights_.defined() ? weights_.index_select(0, label_task_indices) : weights_,
          .sums = sums_,
          .feature_scale_gradients = norm_scale_gradients_};
}

std::vector<at::Tensor> PerTaskLossSums::get_sums_to_reduce() const {
  if (!norm_scale_gradients_.defined()) return {sums_};
  return {sums_, norm_scale_gradients_};
}

at::Tensor PerTaskLossSums::compute_metric_scalars() const {
  if (!norm_scale_gradients_.defined()) return sums_.flatten();
  return at::cat({sums_, at::linalg_vector_norm(norm_scale_gradients_, 2, at::IntArrayRef{1}, /*keepdim=*/true)}, 1)
      .flatten();
}

GradNorm::GradNorm(int64_t tasks, GradNormSettings settings)
    : settings_(settings),
      state_{std::vector<double>(static_cast<size_t>(tasks), 1.0),
             std::vector<std::optional<double>>(static_cast<size_t>(tasks))} {}

void GradNorm::update_weights(const std::vector<TaskResult>& results, const std::vector<double>& weights) {
  std::vector<size_t> present_task_indices;
  for (size_t task = 0; task < results.size(); ++task) {
    if (results[task].counts.label_tokens == 0 || !(results[task].loss > 0)) continue;
    present_task_indices.push_back(task);
    if (!state_.initial_losses[task]) state_.initial_losses[task] = results[task].loss;
  }
  if (present_task_indices.size() < 2) return;
  const auto count = static_cast<double>(present_task_indices.size());
  std::vector<double> lags, norms;
  for (const size_t task : present_task_indices) {
    lags.push_back(results[task].loss / *state_.initial_losses[task]);
    norms.push_back(results[task].gradient_norm);
  }
  const double mean_lag = sum(lags) / count;
  const double mean_norm = sum(norms) / count;
  const double weight_sum = sum(state_.weights);
  for (size_t i = 0; i < present_task_indices.size(); ++i) {
    const size_t task = present_task_indices[i];
    const double norm_excess = norms[i] - mean_norm * std::pow(lags[i] / mean_lag, settings_.alpha);
    // The derivative of G with respect to the weight: G is proportional to the weight of the step.
    const double norm_derivative = norms[i] / weights[task];
    const double sign = norm_excess > 0 ? 1.0 : norm_excess < 0 ? -1.0 : 0.0;
    state_.weights[task] =
        std::max(kMinTaskWeight, state_.weights[task] - settings_.learning_rate * sign * norm_derivative);
  }
  // Rescale only the tasks of this step, to their previous sum; the other tasks keep their weights.
  double present_weight_sum_before = weight_sum;
  double present_weight_sum_after = 0;
  for (size_t task = 0, i = 0; task < results.size(); ++task) {
    if (i < present_task_indices.size() && present_task_indices[i] == task) {
      present_weight_sum_after += state_.weights[task];
      ++i;
    } else {
      present_weight_sum_before -= state_.weights[task];
    }
  }
  for (const size_t task : present_task_indices)
    state_.weights[task] *= present_weight_sum_before / present_weight_sum_after;
}

void GradNorm::set_state(State state) {
  VLMTRAIN_CHECK(state.weights.size() == state_.weights.size() && state.initial_losses.size() == state_.weights.size(),
                 "the state has weights of {} tasks, expected {}", state.weights.size(), state_.weights.size());
  state_ = std::move(state);
}

at::Tensor make_pcgrad_orders(int64_t tasks, uint64_t seed) {
  at::Tensor orders = at::empty({tasks - 1, tasks}, at::kLong);
  auto* const values = orders.mutable_data_ptr<int64_t>();
  for (int64_t task = 0; task < tasks; ++task) {
    const auto order =
        make_random_permutation(tasks - 1, derive_stream_seed(seed, "pcgrad", {static_cast<uint64_t>(task)}));
    for (int64_t i = 0; i < tasks - 1; ++i) {
      const int64_t other_task = order[static_cast<size_t>(i)];
      values[i * tasks + task] = other_task < task ? other_task : other_task + 1;
    }
  }
  return orders;
}

at::Tensor compute_pcgrad_coefficients(const at::Tensor& products, const at::Tensor& orders) {
  // Row i holds the coefficients of task i's gradient.
  const at::Tensor coefficients = at::eye(products.size(0), products.options());
  const at::Tensor squared_norms = products.diagonal().clamp_min(std::numeric_limits<double>::min());
  for (int64_t i = 0; i < orders.size(0); ++i) {
    const at::Tensor other_task = orders.select(0, i);
    const at::Tensor dot_products = (coefficients * products.index_select(0, other_task)).sum(1);
    const at::Tensor projection_coefficients = dot_products.clamp_max(0.0) / squared_norms.index_select(0, other_task);
    coefficients.scatter_add_(1, other_task.unsqueeze(1), projection_coefficients.neg().unsqueeze(1));
  }
  return coefficients.sum(0);
}

void resolve_gradient_conflicts(GradientBuckets& buckets, uint64_t seed) {
  const at::NoGradGuard no_gradients;
  const memory::ComponentScope optimizer_scope(memory::Component::kOptimizer);
  const at::Tensor products = compute_gradient_products(buckets);
  const at::Tensor orders =
      memory::copy_to_device(make_pcgrad_orders(buckets.num_gradient_groups(), seed), products.device());
  buckets.combine_gradient_groups(compute_pcgrad_coefficients(products, orders).to(at::kFloat));
}

}  // namespace vlmtrain::engine
