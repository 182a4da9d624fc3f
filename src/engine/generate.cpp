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
#include "vlmtrain/nn/attention/key_value_cache.h"
#include "vlmtrain/nn/matmul.h"

namespace vlmtrain::engine {

namespace {

/// A prompt with the answer so far.
struct Sequence {
  size_t index;  // in the result
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

int64_t compute_next_position(const data::Sample& prompt) {
  return prompt.position_ids.empty() ? prompt.tokens() : std::ranges::max(prompt.position_ids) + 1;
}

std::vector<Sequence> make_sequences(std::vector<data::Sample> prompts, const models::ImageFeatures& image_features,
                                     uint64_t seed) {
  std::vector<Sequence> sequences;
  int64_t first_feature = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    data::Sample& prompt = prompts[i];
    const int64_t position = compute_next_position(prompt);
    prompt.pixel_values.reset();
    prompt.grids.clear();
    models::ImageFeatures features;
    if (const auto count = std::ssize(prompt.image_token_positions); count > 0) {
      features = image_features.narrow(first_feature, count);
      first_feature += count;
    }
    sequences.push_back(
        {i, std::move(prompt), std::move(features), position, RandomStream(derive_stream_seed(seed, "generate", {i}))});
  }
  return sequences;
}

data::MicroBatch collate_sequences(std::span<const Sequence> sequences, at::Device device) {
  std::vector<data::Sample> samples;
  for (const auto& sequence : sequences) samples.push_back(sequence.sample);
  return data::collate(samples).to(device);
}

models::ImageFeatures join_features(std::span<const Sequence> sequences) {
  std::vector<models::ImageFeatures> features;
  for (const auto& sequence : sequences) features.push_back(sequence.image_features);
  return models::ImageFeatures::join(features);
}

/// The last token of each sequence.
data::MicroBatch collate_last_tokens(std::span<const Sequence> sequences, at::Device device) {
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
  const at::Tensor device_tokens = memory::copy_to_device(tokens, device);
  data::MicroBatch batch;
  batch.token_ids = device_tokens[0];
  batch.position_ids = has_axes ? device_tokens[1].expand({data::kPositionAxes, count}) : device_tokens[1];
  batch.segments = nn::Segments::uniform(count, 1, device);
  batch.samples = count;
  return batch;
}

/// fp32 [sequences, vocabulary], of the tokens that come next. `cache` is null or empty, or has all but the newest.
at::Tensor compute_next_logits(const models::VisionLanguageModel& model, std::span<const Sequence> sequences,
                               nn::KeyValueCache* cache, bool is_first_step, at::Device device) {
  const bool is_prefill = is_first_step || cache == nullptr;
  const auto batch = is_prefill ? collate_sequences(sequences, device) : collate_last_tokens(sequences, device);
  const at::Tensor last_rows = batch.segments.offsets.slice(0, 1).to(at::kLong) - 1;
  at::Tensor logits;
  run_pass(model.parameters(), {}, [&] {
    model.parameters().prepare_non_block_parameters();
    const auto output = model.hidden_states(batch, is_prefill ? join_features(sequences) : models::ImageFeatures(),
                                            {.positions = last_rows}, cache);
    logits = nn::matmul_transposed(output.hidden, model.output_weight()).to(at::kFloat);
  });
  return logits;
}

at::Tensor draw_uniform_numbers(std::span<Sequence> sequences) {
  at::Tensor numbers = at::empty({std::ssize(sequences)}, at::kDouble);
  auto* number = numbers.mutable_data_ptr<double>();
  for (auto& sequence : sequences) *number++ = static_cast<double>(sequence.random.next() >> 11) * 0x1p-53;
  return numbers;
}

/// The first parameter with a value that is not finite; empty where all are.
std::string find_non_finite_parameter(const models::VisionLanguageModel& model) {
  for (const auto& parameter : model.parameters().all()) {
    if (!at::isfinite(parameter.tensor).all().item<bool>()) return parameter.name;
  }
  return "";
}

void check_finite(const at::Tensor& logits, const models::VisionLanguageModel& model) {
  if (logits.is_meta() || at::isfinite(logits.amax(1)).all().item<bool>()) return;
  const std::string name = find_non_finite_parameter(model);
  throw run_error("the model's logits are not finite, so that there is no answer: {}",
                  name.empty() ? "its values overflow; compute in fp32 or bf16"
                               : fmt::format("{} has values that are not; take an earlier checkpoint", name));
}

std::vector<int64_t> choose_next_tokens(at::Tensor logits, std::span<Sequence> sequences,
                                        const SamplingSettings& settings) {
  if (settings.repetition_penalty != 1) {
    std::vector<std::vector<int64_t>> previous_tokens;
    for (const auto& sequence : sequences) previous_tokens.push_back(sequence.sample.token_ids);
    logits = penalize_repetition(logits, previous_tokens, settings.repetition_penalty);
  }
  const at::Tensor next_tokens =
      settings.temperature == 0
          ? logits.argmax(1)
          : sample_tokens(filter_logits(logits, settings),
                          memory::copy_to_device(draw_uniform_numbers(sequences), logits.device()));
  if (next_tokens.is_meta()) return std::vector<int64_t>(sequences.size());  // a rehearsal has no values
  const at::Tensor tokens = next_tokens.to(at::kCPU);
  return {tokens.const_data_ptr<int64_t>(), tokens.const_data_ptr<int64_t>() + tokens.numel()};
}

nn::KeyValueCache make_cache(std::span<const Sequence> sequences, const GenerateSettings& settings) {
  std::vector<int64_t> capacities;
  const int64_t max_answer_tokens = std::max(settings.max_new_tokens, settings.reserved_new_tokens);
  for (const auto& sequence : sequences) capacities.push_back(sequence.sample.tokens() + max_answer_tokens);
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
    const nn::PassSpec spec{.vision_passes = models::count_vision_passes(vision, model.vision_tiles_per_pass()),
                            .text_model = false};
    run_pass(model.parameters(), spec, [&] { features = model.get_all_image_features(vision); });
  }
  return generate(model, std::move(prompts), features, settings);
}

std::vector<std::vector<int64_t>> generate(const models::VisionLanguageModel& model, std::vector<data::Sample> prompts,
                                           const models::ImageFeatures& image_features,
                                           const GenerateSettings& settings) {
  const at::NoGradGuard no_gradients;
  validate(settings.sampling);
  std::vector<std::vector<int64_t>> answers(prompts.size());
  std::vector<Sequence> active = make_sequences(std::move(prompts), image_features, settings.sampling.seed);
  const auto is_at_max_length = [&](const Sequence& sequence) {
    return sequence.sample.tokens() >= settings.max_length;
  };
  std::erase_if(active, is_at_max_length);
  std::optional<nn::KeyValueCache> cache;
  if (settings.use_cache) cache.emplace(make_cache(active, settings));
  for (int64_t step = 0; step < settings.max_new_tokens && !active.empty(); ++step) {
    const at::Tensor logits =
        compute_next_logits(model, active, cache ? &*cache : nullptr, /*is_first_step=*/step == 0, settings.device);
    if (settings.require_finite) check_finite(logits, model);
    const auto tokens = choose_next_tokens(logits, active, settings.sampling);
    std::vector<Sequence> still_active;
    std::vector<size_t> active_indices;
    for (size_t index = 0; index < active.size(); ++index) {
      if (std::ranges::count(settings.eos_token_ids, tokens[index]) > 0) continue;
      auto& sequence = active[index];
      answers[sequence.index].push_back(tokens[index]);
      sequence.append(tokens[index]);
      if (is_at_max_length(sequence)) continue;
      still_active.push_back(std::move(sequence));
      active_indices.push_back(index);
    }
    active = std::move(still_active);
    if (cache) cache->batch_select_indices(active_indices);
  }
  return answers;
}

}  // namespace vlmtrain::engine
