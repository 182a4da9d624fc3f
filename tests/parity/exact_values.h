#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/small_step.h"
#include "parity/deviations.h"
#include "parity/stored_tensor.h"
#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/engine/step.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::parity {

/// How much further from the exact value another processor's order of additions may take a result than the reference
/// is: up to 8.2 times was seen with every mix of ATen's, oneDNN's and MKL's instruction sets.
constexpr double kMaxReferenceRatio = 16;
/// Four times float32's precision: a reference that happens to be exact is no measure.
constexpr double kRoundingError = 2.4e-7;
/// How far, relative, a reference in float32 may be from float64.
constexpr double kReferenceTolerance = 2e-5;

/// How far, relative, float32 may be from `reference` on another processor, which itself is as far from `exact` as it
/// is.
inline double compute_tolerance(const at::Tensor& reference, const at::Tensor& exact) {
  return kMaxReferenceRatio * (relative_difference(reference, exact) + kRoundingError);
}

/// What a model computes in float64, with PyTorch's own cross-entropy: the exact values beside those in float32.
class ExactValues {
 public:
  /// `model` is in float64.
  ExactValues(const models::VisionLanguageModel& model, std::span<const data::Sample> samples) {
    const auto batch = data::collate(samples);
    const auto output = model.forward(batch, {.positions = batch.label_positions});
    const at::Tensor logits = at::matmul(output.hidden, model.output_weight().t());
    const at::Tensor loss = at::cross_entropy_loss(logits, batch.labels);
    loss.backward();
    logits_ = logits.detach();
    loss_ = loss.detach();
    for (const auto& parameter : model.parameters().all()) {
      if (parameter.tensor.grad().defined()) gradients_.emplace(parameter.name, parameter.tensor.grad());
    }
  }

  const at::Tensor& logits() const { return logits_; }  ///< [labels, vocabulary]
  const at::Tensor& loss() const { return loss_; }      ///< the mean over the labels
  const at::Tensor& gradient(const std::string& parameter) const { return gradients_.at(parameter); }

  /// How exact float32 is to be expected to find the norm of all gradients, relative: a vector's norm is no further off
  /// than the vector. It is measured on the stored elements. The reference's gradients are called `prefix` + the
  /// parameter's name.
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

/// Holds two results in float32 against the exact one. `reference` was read from a file, so that its distance is the
/// same on every processor; it says how much float32 can know of this value, and so how far `actual` may be, which was
/// computed here.
/// Every element of `actual` is held; of the reference, the stored ones one by one and the others by the projections.
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

/// The same for a reference that is stored whole.
inline void expect_close_to_exact(Deviations& deviations, const at::Tensor& actual, const at::Tensor& reference,
                                  const at::Tensor& exact, const std::string& kind, const std::string& location) {
  expect_close_to_exact(deviations, actual, StoredTensor(location, reference.flatten(), compute_projections(reference)),
                        exact, kind, location);
}

/// Holds a step of the optimizer against the reference's, of which `exact` is the same in float64: weights drift apart
/// where AdamW divides a gradient that is next to nothing by its own size, the reference's from the exact ones too.
/// `compute_norm_tolerance` is of the first step, before which no weight has moved.
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

/// Trains `model`, and beside it the same in float64, as the reference did, all samples at once.
inline void expect_same_steps(Deviations& deviations, models::VisionLanguageModel& model,
                              models::VisionLanguageModel& exact_model, const engine::AdamWSettings& settings,
                              double rate, std::span<const data::Sample> samples, const ReferenceFile& reference,
                              const std::string& gradient_prefix, const std::string& name) {
  const double compute_norm_tolerance =
      ExactValues(exact_model, samples).compute_norm_tolerance(reference, gradient_prefix);
  engine::Training training(model, settings);
  engine::Training exact(exact_model, settings);
  const engine::SmallStep make_full_batch{.micro_batch_size = std::ssize(samples)};
  const at::Tensor losses = reference.tensor("step_losses"), norms = reference.tensor("step_grad_norms");
  for (int64_t step = 0; step < losses.size(0); ++step) {
    const auto actual = engine::optimizer_step(training, samples, {rate, rate, rate}, make_full_batch);
    expect_same_step(deviations, actual, losses, norms,
                     engine::optimizer_step(exact, samples, {rate, rate, rate}, make_full_batch),
                     compute_norm_tolerance, step, name);
  }
}

}  // namespace vlmtrain::parity
