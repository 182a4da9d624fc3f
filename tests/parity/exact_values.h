#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/small_step.h"
#include "parity/deviations.h"
#include "parity/logits.h"
#include "parity/stored_tensor.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/engine/step/step.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::parity {

/// Largest accepted ratio of a result's error to the reference's error. Another order of additions
/// reached 8.2 in tests with every mix of ATen's, oneDNN's and MKL's instruction sets; 16 is twice
/// that.
constexpr double kMaxReferenceRatio = 16;
/// Four times float32's precision: lower limit of the error of a reference that happens to be
/// exact.
constexpr double kRoundingError = 2.4e-7;
/// Largest relative error of a float32 reference against float64.
constexpr double kReferenceTolerance = 2e-5;

/// Returns the relative tolerance of float32 against `reference` on another processor, from the
/// error of the reference against `exact`.
inline double compute_tolerance(const at::Tensor& reference, const at::Tensor& exact) {
  return kMaxReferenceRatio * (relative_difference(reference, exact) + kRoundingError);
}

/// Exact values: results of a model in float64 with PyTorch's own cross-entropy.
class ExactValues {
 public:
  /// Computes the values. `model`: in float64.
  ExactValues(const models::VisionLanguageModel& model, std::span<const data::Sample> samples) {
    const auto batch = data::collate(samples);
    const auto output = model.forward(batch, {.positions = batch.label_positions});
    const at::Tensor logits = compute_logits(model, output.hidden_states);
    const at::Tensor loss = at::cross_entropy_loss(logits, batch.labels);
    loss.backward();
    logits_ = logits.detach();
    loss_ = loss.detach();
    for (const auto& parameter : model.parameters().all()) {
      if (parameter.tensor.grad().defined()) gradients_.emplace(parameter.name, parameter.tensor.grad());
    }
  }

  const at::Tensor& logits() const { return logits_; }  ///< [labels, vocabulary]
  const at::Tensor& loss() const { return loss_; }      ///< mean over the labels
  const at::Tensor& gradient(const std::string& parameter) const { return gradients_.at(parameter); }

  /// Returns the relative tolerance for the norm of all gradients in float32: a norm has at most
  /// the error of its vector. It is measured on the stored elements. The reference's gradients are
  /// named `prefix` + parameter.
  double compute_norm_tolerance(const ReferenceFile& reference, const std::string& prefix) const {
    std::vector<at::Tensor> actual, exact;
    for (const auto& [name, gradient] : gradients_) {
      const StoredTensor stored = reference.stored(prefix + name);
      actual.push_back(stored.values());
      exact.push_back(stored.select_stored(gradient));
    }
    return compute_tolerance(at::cat(actual), at::cat(exact));
  }

 private:
  at::Tensor logits_;
  at::Tensor loss_;
  std::map<std::string, at::Tensor> gradients_;
};

/// Compares two float32 results with the exact one. `reference` was read from a file, so its error
/// is the same on every processor; it determines the accepted error of `actual`, which was computed
/// here. All elements of `actual` are compared; the reference's stored elements one by one, the
/// others by the projections.
inline void expect_close_to_exact(Deviations& deviations, const at::Tensor& actual, const StoredTensor& reference,
                                  const at::Tensor& exact, const std::string& kind, const std::string& location) {
  struct Measure {
    double (*distance)(const at::Tensor&, const at::Tensor&);
    const char* suffix;
  };
  const at::Tensor found_part = reference.select_stored(actual);
  const at::Tensor exact_part = reference.select_stored(exact);
  deviations.record(relative_difference(found_part, reference.values()), kind + "_from_reference", location);
  for (const auto& [distance, suffix] : {Measure{relative_difference, ""}, {largest_difference, ", single element"}}) {
    const double of_reference = distance(reference.values(), exact_part);
    const double of_found = std::max(distance(found_part, exact_part), distance(actual, exact));
    deviations.expect_at_most(kReferenceTolerance, of_reference, kind + suffix + ", reference from float64", location);
    deviations.expect_at_most(kMaxReferenceRatio, of_found / (of_reference + kRoundingError),
                              kind + suffix + ", times the reference's", location);
  }
  const double norm = exact.to(at::kDouble).norm().clamp_min(1e-12).item<double>();
  deviations.expect_at_most(kReferenceTolerance, reference.estimate_difference_norm(exact) / norm,
                            kind + ", all elements, reference from float64", location);
}

/// Compares with a reference that is stored in full.
inline void expect_close_to_exact(Deviations& deviations, const at::Tensor& actual, const at::Tensor& reference,
                                  const at::Tensor& exact, const std::string& kind, const std::string& location) {
  expect_close_to_exact(deviations, actual, StoredTensor(location, reference.flatten(), compute_projections(reference)),
                        exact, kind, location);
}

/// Compares an optimizer step with the reference's; `exact` is the same step in float64. Weights
/// drift apart where AdamW divides a tiny gradient by its own magnitude, the reference's from the
/// exact ones, too. `compute_norm_tolerance`: of the first step, before any weight has moved.
inline void expect_same_step(Deviations& deviations, const engine::StepResult& actual, const at::Tensor& losses,
                             const at::Tensor& norms, const engine::StepResult& exact, double compute_norm_tolerance,
                             int64_t step, const std::string& name) {
  const auto location = fmt::format("{}, step {}", name, step);
  const at::Tensor loss = losses[step];
  const at::Tensor norm = norms[step];
  deviations.expect_at_most(std::max(1e-6, compute_tolerance(loss, exact.loss)), relative_difference(actual.loss, loss),
                            "loss of a step", location);
  deviations.expect_at_most(
      step == 0 ? compute_norm_tolerance : std::max(3e-5, compute_tolerance(norm, exact.grad_norm)),
      relative_difference(actual.grad_norm, norm),
      step == 0 ? "gradient norm of the first step" : "gradient norm of a later step", location);
}

/// Trains `model`, and a copy in float64, as the reference did, with all samples at once.
inline void expect_same_steps(Deviations& deviations, models::VisionLanguageModel& model,
                              models::VisionLanguageModel& exact_model, const engine::OptimizerSettings& settings,
                              double rate, std::span<const data::Sample> samples, const ReferenceFile& reference,
                              const std::string& gradient_prefix, const std::string& name) {
  const double compute_norm_tolerance =
      ExactValues(exact_model, samples).compute_norm_tolerance(reference, gradient_prefix);
  engine::TrainingState training(model, settings);
  engine::TrainingState exact(exact_model, settings);
  const engine::SmallStep make_full_batch{.micro_batch_size = std::ssize(samples)};
  const at::Tensor losses = reference.tensor("step_losses"), norms = reference.tensor("step_grad_norms");
  for (int64_t step = 0; step < losses.size(0); ++step) {
    const auto actual = engine::run_optimizer_step(training, samples, {rate, rate, rate}, make_full_batch);
    expect_same_step(deviations, actual, losses, norms,
                     engine::run_optimizer_step(exact, samples, {rate, rate, rate}, make_full_batch),
                     compute_norm_tolerance, step, name);
  }
}

}  // namespace vlmtrain::parity
