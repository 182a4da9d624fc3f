#include "vlmtrain/engine/generate.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <optional>
#include <span>

#include "engine/pass.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/memory/copy.h"
#include "vlmtrain/nn/key_value_cache.h"
#include "vlmtrain/nn/matmul.h"

namespace vlmtrain::engine {

namespace {

/// A prompt with the answer so far.
struct Sequence {
  size_t place;  // in the result
  data::Sample sample;
  models::ImageFeatures image_features;
  int64_t next_position;
  RandomStream random;

  void append(int64_t token) {
    const int64_t tokens = sample.tokens();
    sample.token_ids.push_back(token);
    sample.is_label.push_back(0);
    if (!sample.position_ids.empty()) {
      for (int64_t axis = data::kPositionAxes; axis > 0; --axis) {
        sample.position_ids.insert(sample.position_ids.begin() + axis * tokens, next_position);
      }
    }
    ++next_position;
  }
};

int64_t position_after(const data::Sample& prompt) {
  return prompt.position_ids.empty() ? prompt.tokens() : std::ranges::max(prompt.position_ids) + 1;
}

std::vector<Sequence> start(std::vector<data::Sample> prompts, const models::ImageFeatures& image_features,
                            uint64_t seed) {
  std::vector<Sequence> sequences;
  int64_t first_feature = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    data::Sample& prompt = prompts[i];
    const int64_t position = position_after(prompt);
    prompt.pixel_values.reset();
    prompt.grids.clear();
    models::ImageFeatures features;
    if (const auto count = std::ssize(prompt.image_token_positions); count > 0) {
      features = image_features.narrow(first_feature, count);
      first_feature += count;
    }
    sequences.push_back(
        {i, std::move(prompt), std::move(features), position, RandomStream(stream_seed(seed, "generate", {i}))});
  }
  return sequences;
}

data::MicroBatch whole_sequences(std::span<const Sequence> sequences, at::Device device) {
  std::vector<data::Sample> samples;
  for (const auto& sequence : sequences) samples.push_back(sequence.sample);
  return data::collate(samples).to(device);
}

models::ImageFeatures features_of(std::span<const Sequence> sequences) {
  std::vector<models::ImageFeatures> features;
  for (const auto& sequence : sequences) features.push_back(sequence.image_features);
  return models::ImageFeatures::join(features);
}

/// The last token of each sequence.
data::MicroBatch newest_tokens(std::span<const Sequence> sequences, at::Device device) {
  const auto count = std::ssize(sequences);
  const at::Tensor tokens = at::empty({2, count}, at::kLong);  // and their positions
  auto* const token = tokens.mutable_data_ptr<int64_t>();
  bool has_axes = false;
  for (int64_t i = 0; i < count; ++i) {
    const Sequence& sequence = sequences[static_cast<size_t>(i)];
    token[i] = sequence.sample.token_ids.back();
    token[count + i] = sequence.next_position - 1;
    has_axes |= !sequence.sample.position_ids.empty();
  }
  const at::Tensor moved = memory::copy_to_device(tokens, device);
  data::MicroBatch batch;
  batch.token_ids = moved[0];
  batch.position_ids = has_axes ? moved[1].expand({data::kPositionAxes, count}) : moved[1];
  batch.segments = nn::Segments::uniform(count, 1, device);
  batch.samples = count;
  return batch;
}

/// fp32 [sequences, vocabulary], of the tokens that come next. `cache` is null or empty, or has all but the newest.
at::Tensor next_logits(const models::VisionLanguageModel& model, std::span<const Sequence> sequences,
                       nn::KeyValueCache* cache, bool is_first_step, at::Device device) {
  const bool is_whole = is_first_step || cache == nullptr;
  const auto batch = is_whole ? whole_sequences(sequences, device) : newest_tokens(sequences, device);
  const at::Tensor last_rows = batch.segments.offsets.slice(0, 1).to(at::kLong) - 1;
  at::Tensor logits;
  in_pass(model.parameters(), {}, [&] {
    model.parameters().use_outside_of_blocks();
    const auto output = model.hidden_states(batch, is_whole ? features_of(sequences) : models::ImageFeatures(),
                                            {.positions = last_rows}, cache);
    logits = nn::matmul_transposed(output.hidden, model.output_weight()).to(at::kFloat);
  });
  return logits;
}

at::Tensor uniform_numbers(std::span<Sequence> sequences) {
  at::Tensor numbers = at::empty({std::ssize(sequences)}, at::kDouble);
  auto* number = numbers.mutable_data_ptr<double>();
  for (auto& sequence : sequences) *number++ = static_cast<double>(sequence.random.next() >> 11) * 0x1p-53;
  return numbers;
}

/// The first parameter with a value that is not finite; empty where all are.
std::string non_finite_parameter(const models::VisionLanguageModel& model) {
  for (const auto& parameter : model.parameters().all()) {
    if (!at::isfinite(parameter.tensor).all().item<bool>()) return parameter.name;
  }
  return "";
}

void check_finite(const at::Tensor& logits, const models::VisionLanguageModel& model) {
  if (logits.is_meta() || at::isfinite(logits.amax(1)).all().item<bool>()) return;
  const std::string name = non_finite_parameter(model);
  throw run_error("the model's logits are not finite, so that there is no answer: {}",
                  name.empty() ? "its values overflow; compute in fp32 or bf16"
                               : fmt::format("{} has values that are not; take an earlier checkpoint", name));
}

std::vector<int64_t> choose(at::Tensor logits, std::span<Sequence> sequences, const SamplingSettings& settings) {
  if (settings.repetition_penalty != 1) {
    std::vector<std::vector<int64_t>> occurred;
    for (const auto& sequence : sequences) occurred.push_back(sequence.sample.token_ids);
    logits = penalize_repetition(logits, occurred, settings.repetition_penalty);
  }
  const at::Tensor chosen = settings.temperature == 0
                                ? logits.argmax(1)
                                : draw_tokens(sampling_logits(logits, settings),
                                              memory::copy_to_device(uniform_numbers(sequences), logits.device()));
  if (chosen.is_meta()) return std::vector<int64_t>(sequences.size());  // a rehearsal has no values
  const at::Tensor tokens = chosen.to(at::kCPU);
  return {tokens.const_data_ptr<int64_t>(), tokens.const_data_ptr<int64_t>() + tokens.numel()};
}

nn::KeyValueCache cache_for(std::span<const Sequence> sequences, const GenerateSettings& settings) {
  std::vector<int64_t> capacities;
  const int64_t room = std::max(settings.max_new_tokens, settings.room_for_tokens);
  for (const auto& sequence : sequences) capacities.push_back(sequence.sample.tokens() + room);
  return {capacities, settings.device};
}

}  // namespace

std::vector<std::vector<int64_t>> generate(const models::VisionLanguageModel& model, std::vector<data::Sample> prompts,
                                           const GenerateSettings& settings) {
  if (prompts.empty()) return {};
  const at::NoGradGuard no_gradients;
  models::ImageFeatures features;
  {
    const auto batch = data::collate(prompts).to(settings.device);
    const models::VisionInput vision{
        .pixel_values = batch.pixel_values, .grids = batch.grids, .modalities = batch.modalities};
    const nn::PassShape shape{.vision_passes = models::passes_of(vision, model.vision_tiles_per_pass()),
                              .text_model = false};
    in_pass(model.parameters(), shape, [&] { features = model.all_image_features(vision); });
  }
  return generate(model, std::move(prompts), features, settings);
}

std::vector<std::vector<int64_t>> generate(const models::VisionLanguageModel& model, std::vector<data::Sample> prompts,
                                           const models::ImageFeatures& image_features,
                                           const GenerateSettings& settings) {
  const at::NoGradGuard no_gradients;
  check(settings.sampling);
  std::vector<std::vector<int64_t>> answers(prompts.size());
  std::vector<Sequence> unfinished = start(std::move(prompts), image_features, settings.sampling.seed);
  const auto is_full = [&](const Sequence& sequence) { return sequence.sample.tokens() >= settings.most_tokens; };
  std::erase_if(unfinished, is_full);
  std::optional<nn::KeyValueCache> cache;
  if (settings.use_cache) cache.emplace(cache_for(unfinished, settings));
  for (int64_t step = 0; step < settings.max_new_tokens && !unfinished.empty(); ++step) {
    const at::Tensor logits =
        next_logits(model, unfinished, cache ? &*cache : nullptr, /*is_first_step=*/step == 0, settings.device);
    if (settings.refuse_non_finite) check_finite(logits, model);
    const auto tokens = choose(logits, unfinished, settings.sampling);
    std::vector<Sequence> still_unfinished;
    std::vector<size_t> kept;
    for (size_t place = 0; place < unfinished.size(); ++place) {
      if (std::ranges::count(settings.end_token_ids, tokens[place]) > 0) continue;
      auto& sequence = unfinished[place];
      answers[sequence.place].push_back(tokens[place]);
      sequence.append(tokens[place]);
      if (is_full(sequence)) continue;
      still_unfinished.push_back(std::move(sequence));
      kept.push_back(place);
    }
    unfinished = std::move(still_unfinished);
    if (cache) cache->keep(kept);
  }
  return answers;
}

}  // namespace vlmtrain::engine
