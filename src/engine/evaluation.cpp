#include "vlmtrain/engine/evaluation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include "engine/pass.h"
#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/nn/fused_loss.h"

namespace vlmtrain::engine {

namespace {

/// fp32 [samples]. `batch.label_tasks` are the places of the labels' samples.
at::Tensor losses_of(const models::VisionLanguageModel& model, const data::MicroBatch& batch,
                     const models::ImageFeatures& image_features, int64_t loss_chunk_rows, at::Device device) {
  model.parameters().use_outside_of_blocks();
  const at::Tensor hidden =
      model.hidden_states(batch, image_features, {.positions = batch.label_positions}, /*cache=*/nullptr).hidden;
  const at::Tensor places = at::arange(batch.samples, at::TensorOptions(at::kLong).device(device)).unsqueeze(1);
  const at::Tensor sums = at::zeros({batch.samples, 2}, at::TensorOptions(at::kFloat).device(device));
  // Weights that are trained have their gradient computed with the loss, whether or not anybody wants it.
  nn::linear_cross_entropy(
      hidden, model.output_weight().detach(), batch.labels, /*normalizer=*/1, loss_chunk_rows,
      {.members = batch.label_tasks.eq(places).to(at::kFloat), .weights = {}, .sums = sums, .scale_gradients = {}});
  return sums.select(1, 0);
}

/// On the meta device there are no values.
std::vector<double> read(const at::Tensor& losses) {
  if (losses.is_meta()) return std::vector<double>(static_cast<size_t>(losses.numel()));
  const at::Tensor values = losses.to(at::kCPU, at::kDouble);
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

}  // namespace

BatchScore evaluate_batch(const models::VisionLanguageModel& model, std::vector<data::Sample> samples,
                          std::vector<data::Sample> prompts, const EvaluationLayout& layout,
                          const GenerateSettings& generation) {
  const at::NoGradGuard no_gradients;
  for (size_t i = 0; i < samples.size(); ++i) samples[i].task_number = static_cast<int64_t>(i);
  BatchScore score;
  models::ImageFeatures features;
  {
    const auto batch = data::collate(samples, /*with_tasks=*/true).to(generation.device);
    samples.clear();
    const models::VisionInput vision{batch.pixel_values, batch.grids};
    const nn::PassShape shape{.vision_passes = models::passes_of(vision, layout.vision_tiles_per_pass)};
    in_pass(model.parameters(), shape, [&] {
      features = model.all_image_features(vision, layout.vision_tiles_per_pass, /*with_dense=*/false);
      score.losses = read(losses_of(model, batch, features, layout.loss_chunk_rows, generation.device));
    });
  }
  if (!prompts.empty()) score.answers = generate(model, std::move(prompts), features, generation);
  return score;
}

}  // namespace vlmtrain::engine
