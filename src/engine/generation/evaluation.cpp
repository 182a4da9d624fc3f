#include "vlmtrain/engine/generation/evaluation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include "engine/step/pass.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/nn/layers/losses.h"

namespace vlmtrain::engine {

namespace {

/// Hidden states of the text model: those that predict labels [labels, hidden size], and those that
/// prompt masks [masks, hidden size].
struct HiddenStates {
  at::Tensor labels, masks;
};

HiddenStates compute_hidden_states(const models::VisionLanguageModel& model, const data::MicroBatch& batch,
                                   const models::ImageFeatures& image_features) {
  model.parameters().prepare_non_block_parameters();
  const bool predicts_masks = model.predicts_masks() && batch.masks.count() > 0;
  const at::Tensor positions =
      predicts_masks ? at::cat({batch.label_positions, batch.masks.prediction_positions}) : batch.label_positions;
  const at::Tensor hidden =
      model.compute_hidden_states(batch, image_features, {.positions = positions}, /*cache=*/nullptr).hidden_states;
  const int64_t labels = batch.label_tokens();
  return {.labels = hidden.narrow(0, 0, labels), .masks = hidden.narrow(0, labels, hidden.size(0) - labels)};
}

/// Returns the weighted sum of the cross-entropy of each sample's labels, fp32 [samples]. REQUIRES:
/// `batch.label_task_indices` has the sample index of each label.
at::Tensor compute_losses(const models::VisionLanguageModel& model, const data::MicroBatch& batch,
                          const at::Tensor& hidden, int64_t loss_chunk_rows, at::Device device) {
  const at::Tensor sample_indices = at::arange(batch.samples, at::TensorOptions(at::kLong).device(device)).unsqueeze(1);
  const at::Tensor sums = at::zeros({batch.samples, 2}, at::TensorOptions(at::kFloat).device(device));
  // The weight is detached, because the loss would otherwise compute its gradient in the forward
  // pass.
  const nn::OutputProjection projection = model.output_projection();
  const at::Tensor weight = projection.weight.detach();
  nn::linear_cross_entropy(hidden, {weight, projection.logit_soft_cap}, batch.labels, /*normalizer=*/1, loss_chunk_rows,
                           {.task_one_hot = batch.label_task_indices.eq(sample_indices).to(at::kFloat),
                            .weights = {},
                            .sums = sums,
                            .feature_scale_gradients = {}},
                           batch.label_weights);
  return sums.select(1, 0);
}

/// Returns the losses as doubles; zeros on the meta device, which has no values.
std::vector<double> to_doubles(const at::Tensor& losses) {
  if (losses.is_meta()) return std::vector<double>(static_cast<size_t>(losses.numel()));
  const at::Tensor values = losses.to(at::kCPU, at::kDouble);
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

at::Tensor copy_logits_to_host(const at::Tensor& logits) {
  return logits.is_meta() ? at::zeros(logits.sizes(), at::kFloat) : logits.to(at::kCPU);
}

/// Splits the logits by sample. `mask_counts` has the number of masks of each sample.
std::vector<at::Tensor> split_mask_logits(const at::Tensor& logits, const std::vector<int64_t>& mask_counts) {
  std::vector<at::Tensor> result(mask_counts.size());
  int64_t first = 0;
  for (size_t i = 0; i < mask_counts.size(); ++i) {
    if (mask_counts[i] > 0) result[i] = logits.narrow(0, first, mask_counts[i]);
    first += mask_counts[i];
  }
  return result;
}

}  // namespace

at::Tensor predict_mask_logits(const models::VisionLanguageModel& model, const std::vector<data::Sample>& samples,
                               const EvaluationLayout& layout, at::Device device) {
  const at::NoGradGuard no_gradients;
  const auto batch = data::collate(samples).to(device);
  const models::VisionInput vision{
      .pixel_values = batch.pixel_values, .patch_grids = batch.patch_grids, .modalities = batch.modalities};
  const nn::ForwardPassSpec pass_spec{.num_vision_passes =
                                          models::count_vision_passes(vision, layout.vision_tiles_per_pass)};
  at::Tensor logits;
  run_pass(model.parameters(), pass_spec, [&] {
    const auto features =
        model.get_all_image_features(vision, layout.vision_tiles_per_pass, /*with_patch_features=*/false);
    logits = copy_logits_to_host(model.compute_mask_logits(
        batch.masks, compute_hidden_states(model, batch, features).masks, layout.vision_tiles_per_pass));
  });
  return logits;
}

BatchEvaluationResult evaluate_batch(const models::VisionLanguageModel& model, std::vector<data::Sample> samples,
                                     std::vector<data::Sample> prompts, const EvaluationLayout& layout,
                                     const GenerationSettings& generation) {
  const at::NoGradGuard no_gradients;
  // With samples as tasks, the sums by task are sums by sample.
  for (size_t i = 0; i < samples.size(); ++i) samples[i].task_index = static_cast<int64_t>(i);
  BatchEvaluationResult evaluation;
  models::ImageFeatures features;
  {
    const auto batch = data::collate(samples, /*with_tasks=*/true).to(generation.device);
    std::vector<int64_t> mask_counts;
    mask_counts.reserve(samples.size());
    for (const auto& sample : samples) mask_counts.push_back(sample.masks.count());
    samples.clear();
    const models::VisionInput vision{
        .pixel_values = batch.pixel_values, .patch_grids = batch.patch_grids, .modalities = batch.modalities};
    const nn::ForwardPassSpec pass_spec{.num_vision_passes =
                                            models::count_vision_passes(vision, layout.vision_tiles_per_pass)};
    run_pass(model.parameters(), pass_spec, [&] {
      features = model.get_all_image_features(vision, layout.vision_tiles_per_pass, /*with_patch_features=*/false);
      const HiddenStates states = compute_hidden_states(model, batch, features);
      evaluation.loss_sums =
          to_doubles(compute_losses(model, batch, states.labels, layout.loss_chunk_rows, generation.device));
      if (!model.predicts_masks()) return;
      evaluation.mask_logits.resize(mask_counts.size());
      if (batch.masks.count() == 0) return;
      evaluation.mask_logits = split_mask_logits(
          copy_logits_to_host(model.compute_mask_logits(batch.masks, states.masks, layout.vision_tiles_per_pass)),
          mask_counts);
    });
  }
  if (!prompts.empty()) evaluation.answers = generate(model, std::move(prompts), features, generation);
  return evaluation;
}

}  // namespace vlmtrain::engine
