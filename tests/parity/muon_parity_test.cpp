#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/small_step.h"
#include "parity/case.h"
#include "parity/deviations.h"
#include "parity/stored_tensor.h"

namespace vlmtrain::parity {
namespace {

// Bounds of ‖update − reference‖ / ‖reference‖, where an update is the difference from the checkpoint.

/// Of a matrix that Muon updates: one unit in the last place of bf16 (2⁻⁸) for each of the five
/// Newton-Schulz iterations. Gradients in fp32 differ by up to 6e-6 of their tensor's largest
/// element between instruction sets. That moves some elements to the next bf16 value, which changes
/// an update of torch.optim.Muon by at most 1.8e-2 (60 random differences for each matrix).
constexpr double kMuonTolerance = 2e-2;
/// Of a parameter that AdamW updates, in elements with a certain gradient. In the reference, the
/// differences above, which reach it through the matrices, change an update by at most 6.5e-4.
constexpr double kAdamWTolerance = 2e-3;
/// The same elements as in FamilyParity.FiveStepsOfAdamW: those whose first gradient exceeds this
/// part of the tensor's largest, and those without a gradient.
constexpr double kCertainGradient = 1e-3;
/// Of the norm of a difference that is estimated from kProjections projections, in multiples of the
/// norm's bound. The estimate exceeds twice the norm with probability 1e-4 (χ² with 8 degrees of
/// freedom above 32).
constexpr double kEstimateFactor = 2;
/// Relative bounds of the first step, before any update: that of the loss is FamilyParity's, and a
/// norm has at most the relative error of its vector.
constexpr double kFirstLossTolerance = 1e-6, kFirstNormTolerance = 1e-5;
/// Relative bounds of the later steps. In the reference, the differences above change losses by at
/// most 2e-5 and norms by at most 1e-4.
constexpr double kLossTolerance = 1e-4, kNormTolerance = 5e-4;

/// Training with Muon, compared with transformers and torch.optim.Muon (data/muon).
class MuonParity : public testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { deviations_.report(); }

  void check_step(const engine::StepResult& result, int64_t step) {
    const auto location = fmt::format("{}, step {}", GetParam(), step);
    const at::Tensor loss = muon_reference_.tensor("step_losses")[step - 1];
    const at::Tensor norm = muon_reference_.tensor("step_grad_norms")[step - 1];
    deviations_.expect_at_most(step == 1 ? kFirstLossTolerance : kLossTolerance, relative_difference(result.loss, loss),
                               step == 1 ? "loss of the first step" : "loss of a later step", location);
    deviations_.expect_at_most(
        step == 1 ? kFirstNormTolerance : kNormTolerance, relative_difference(result.grad_norm, norm),
        step == 1 ? "gradient norm of the first step" : "gradient norm of a later step", location);
  }

  void check_updates(const models::VisionLanguageModel& model, int64_t step) {
    const auto& parameters = model.parameters().all();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (has_zero_true_gradient(parameters[i].name)) continue;
      check_update(parameters[i], initial_model_->parameters().all()[i].tensor.detach(), step);
    }
  }

  const Case case_{GetParam()};
  const ReferenceFile adamw_reference_ = case_.expected();
  const ReferenceFile muon_reference_{source_folder() / "tests/parity/data/muon" / (GetParam() + ".safetensors")};
  const std::vector<data::Sample> samples_ = case_.samples();
  const std::unique_ptr<models::VisionLanguageModel> initial_model_ = case_.load_model();
  Deviations deviations_;

 private:
  void check_update(const nn::Parameter& parameter, const at::Tensor& initial, int64_t step) {
    const auto location = fmt::format("{}, step {}", parameter.name, step);
    const at::Tensor weight = parameter.tensor.detach();
    const StoredTensor reference = muon_reference_.stored(fmt::format("parameter.step_{}.{}", step, parameter.name));
    const at::Tensor stored_initial = reference.select_stored(initial);
    const at::Tensor actual_update = reference.select_stored(weight) - stored_initial;
    const at::Tensor reference_update = reference.values() - stored_initial;
    if (parameter.is_linear_weight) {
      deviations_.expect_at_most(kMuonTolerance, relative_difference(actual_update, reference_update), "Muon's update",
                                 location);
      deviations_.expect_at_most(
          kEstimateFactor * kMuonTolerance,
          reference.estimate_difference_norm(weight) / (weight - initial).norm().clamp_min(1e-12).item<double>(),
          "Muon's update, all elements", location);
      return;
    }
    // The first gradients are those of the case, because both references start from its checkpoint.
    const at::Tensor gradient_size = adamw_reference_.stored("gradient." + parameter.name).values().abs();
    const at::Tensor is_certain =
        (gradient_size > kCertainGradient * gradient_size.max()).logical_or_(gradient_size == 0);
    deviations_.expect_at_most(
        kAdamWTolerance,
        relative_difference(actual_update.masked_select(is_certain), reference_update.masked_select(is_certain)),
        "AdamW's update", location);
  }
};

TEST_P(MuonParity, FiveStepsOfMuon) {
  const auto description = case_.description();
  const auto model = case_.load_model();
  const engine::OptimizerSettings settings = {.kind = engine::OptimizerKind::kMuon,
                                              .adamw = {.beta1 = description.at("adam_betas").at(0),
                                                        .beta2 = description.at("adam_betas").at(1),
                                                        .epsilon = description.at("adam_epsilon")},
                                              .weight_decay = description.at("weight_decay"),
                                              .max_grad_norm = description.at("max_grad_norm")};
  engine::TrainingState training(*model, settings);
  const double rate = description.at("learning_rate");
  const int64_t num_steps = muon_reference_.tensor("step_losses").size(0);
  for (int64_t step = 1; step <= num_steps; ++step) {
    check_step(
        engine::run_optimizer_step(training, samples_, {rate, rate, rate}, {.micro_batch_size = std::ssize(samples_)}),
        step);
    if (step == 1 || step == num_steps) check_updates(*model, step);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, MuonParity, testing::Values("mixed_batch", "qwen2_5_vl_mixed"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace vlmtrain::parity
