#include "vlmtrain/engine/generate.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>

#include "vlmtrain/data/micro_batch.h"

namespace vlmtrain::engine {

namespace {

/// A prompt with the answer so far.
struct Sequence {
  size_t place;  // in the result
  data::Sample sample;
  at::Tensor image_features;  // [image tokens, hidden]; undefined without images
};

std::vector<Sequence> start(const models::VisionLanguageModel& model, std::vector<data::Sample> prompts,
                            at::Device device) {
  std::vector<Sequence> sequences;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Sequence sequence{i, std::move(prompts[i]), {}};
    if (sequence.sample.tiles.defined()) {
      sequence.image_features = model.image_features({sequence.sample.tiles.to(device), sequence.sample.grids});
      sequence.sample.tiles.reset();
    }
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

/// The most probable next token of each sequence.
std::vector<int64_t> next_tokens(const models::VisionLanguageModel& model, const std::vector<Sequence>& sequences,
                                 at::Device device) {
  std::vector<data::Sample> samples;
  std::vector<at::Tensor> features;
  for (const auto& sequence : sequences) {
    samples.push_back(sequence.sample);
    if (sequence.image_features.defined()) features.push_back(sequence.image_features);
  }
  const auto batch = data::collate(samples).to(device);
  const at::Tensor last_rows = batch.segments.offsets.slice(0, 1).to(at::kLong) - 1;
  const at::Tensor hidden = model.hidden_states(batch, features.empty() ? at::Tensor() : at::cat(features), last_rows);
  const at::Tensor best = at::mm(hidden, model.output_weight().t()).argmax(1).to(at::kCPU);
  return {best.const_data_ptr<int64_t>(), best.const_data_ptr<int64_t>() + best.numel()};
}

}  // namespace

std::vector<std::vector<int64_t>> generate(const models::VisionLanguageModel& model, std::vector<data::Sample> prompts,
                                           const GenerateSettings& settings) {
  const at::NoGradGuard no_gradients;
  std::vector<std::vector<int64_t>> answers(prompts.size());
  std::vector<Sequence> unfinished = start(model, std::move(prompts), settings.device);
  for (int64_t i = 0; i < settings.max_new_tokens && !unfinished.empty(); ++i) {
    const auto tokens = next_tokens(model, unfinished, settings.device);
    std::vector<Sequence> still_unfinished;
    for (size_t place = 0; place < unfinished.size(); ++place) {
      if (tokens[place] == settings.end_of_turn_id) continue;
      auto& sequence = unfinished[place];
      answers[sequence.place].push_back(tokens[place]);
      sequence.sample.token_ids.push_back(tokens[place]);
      sequence.sample.is_label.push_back(0);
      still_unfinished.push_back(std::move(sequence));
    }
    unfinished = std::move(still_unfinished);
  }
  return answers;
}

}  // namespace vlmtrain::engine
