#include "vlmtrain/engine/generation/generate.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <tuple>

#include "engine/step/pass.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/memory/device_copy.h"
#include "vlmtrain/nn/generation_cache.h"
#include "vlmtrain/nn/layers/output_projection.h"

namespace vlmtrain::engine {

namespace {

constexpr double kRemovedLogit = -std::numeric_limits<double>::infinity();

at::Tensor keep_top_k(const at::Tensor& logits, int64_t k) {
  const at::Tensor top_logits = std::get<0>(at::topk(logits, std::min(k, logits.size(1)), 1));
  return logits.masked_fill(logits < top_logits.narrow(1, top_logits.size(1) - 1, 1), kRemovedLogit);
}

at::Tensor keep_top_p(const at::Tensor& logits, double p) {
  const auto [ascending, order] = at::sort(logits, 1);
  at::Tensor removed_mask = at::cumsum(at::softmax(ascending, 1), 1) <= 1 - p;
  removed_mask.narrow(1, removed_mask.size(1) - 1, 1).fill_(false);  // the most probable token always remains
  return logits.masked_fill(removed_mask.scatter(1, order, removed_mask), kRemovedLogit);
}

/// Returns the tokens of each sequence, padded with its first token, as int64 [sequences, longest].
/// A repeated token does not change the set of previous tokens.
at::Tensor pad_token_sequences(std::span<const std::vector<int64_t>> sequences) {
  size_t max_sequence_length = 0;
  for (const auto& tokens : sequences) max_sequence_length = std::max(max_sequence_length, tokens.size());
  at::Tensor rows = at::empty({std::ssize(sequences), static_cast<int64_t>(max_sequence_length)}, at::kLong);
  auto* output = rows.mutable_data_ptr<int64_t>();
  for (const auto& tokens : sequences) {
    VLMTRAIN_CHECK(!tokens.empty(), "expected a sequence with at least one token");
    std::fill_n(std::copy(tokens.begin(), tokens.end(), output), max_sequence_length - tokens.size(), tokens.front());
    output += max_sequence_length;
  }
  return rows;
}

/// A prompt with its answer so far.
struct GeneratedSequence {
  size_t index;         // index of the prompt and of its answer
  data::Sample sample;  // without pixels
  models::ImageFeatures image_features;
  int64_t next_position;  // position id of the next token, equal on all axes
  RandomStream random;

  /// Appends a token of the answer.
  void append(int64_t token) {
    const int64_t tokens = sample.tokens();
    sample.token_ids.push_back(token);
    sample.label_mask.push_back(0);
    if (!sample.position_ids.empty()) {
      for (int64_t axis = data::kNumPositionAxes; axis > 0; --axis) {
        sample.position_ids.insert(sample.position_ids.begin() + axis * tokens, next_position);
      }
    }
    ++next_position;
  }
};

int64_t compute_next_position(const data::Sample& prompt) {
  return prompt.position_ids.empty() ? prompt.tokens() : std::ranges::max(prompt.position_ids) + 1;
}

std::vector<GeneratedSequence> make_sequences(std::vector<data::Sample> prompts,
                                              const models::ImageFeatures& image_features, uint64_t seed) {
  std::vector<GeneratedSequence> sequences;
  int64_t first_image_token = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    data::Sample& prompt = prompts[i];
    const int64_t position = compute_next_position(prompt);
    prompt.pixel_values.reset();
    models::ImageFeatures features;
    if (const auto count = std::ssize(prompt.image_token_positions); count > 0) {
      features = image_features.narrow(first_image_token, count);
      first_image_token += count;
    }
    sequences.push_back(
        {i, std::move(prompt), std::move(features), position, RandomStream(derive_stream_seed(seed, "generate", {i}))});
  }
  return sequences;
}

data::MicroBatch collate_sequences(std::span<const GeneratedSequence> sequences, at::Device device) {
  std::vector<data::Sample> samples;
  for (const auto& sequence : sequences) samples.push_back(sequence.sample);
  return data::collate(samples).to(device);
}

models::ImageFeatures concat_image_features(std::span<const GeneratedSequence> sequences) {
  std::vector<models::ImageFeatures> features;
  for (const auto& sequence : sequences) features.push_back(sequence.image_features);
  return models::ImageFeatures::concat(features);
}

/// Returns a micro-batch of the last token of each sequence.
data::MicroBatch collate_last_tokens(std::span<const GeneratedSequence> sequences, at::Device device) {
  const auto count = std::ssize(sequences);
  const at::Tensor tokens = at::empty({2, count}, at::kLong);  // tokens and positions
  auto* const token = tokens.mutable_data_ptr<int64_t>();
  bool has_position_axes = false;
  for (int64_t i = 0; i < count; ++i) {
    const GeneratedSequence& sequence = sequences[static_cast<size_t>(i)];
    token[i] = sequence.sample.token_ids.back();
    token[count + i] = sequence.next_position - 1;
    has_position_axes |= !sequence.sample.position_ids.empty();
  }
  const at::Tensor device_tokens = memory::copy_to_device(tokens, device);
  data::MicroBatch batch;
  batch.token_ids = device_tokens[0];
  batch.position_ids = has_position_axes ? device_tokens[1].expand({data::kNumPositionAxes, count}) : device_tokens[1];
  batch.segments = nn::Segments::uniform(count, 1, device);
  batch.samples = count;
  return batch;
}

/// Returns the logits of the next tokens, fp32 [sequences, vocabulary]. `cache` is null, or has all
/// tokens but the newest of each sequence; in the first step it is empty. Adds tokens to the cache.
at::Tensor compute_next_logits(const models::VisionLanguageModel& model, std::span<const GeneratedSequence> sequences,
                               nn::GenerationCache* cache, bool is_first_step, at::Device device) {
  const bool is_prefill = is_first_step || cache == nullptr;
  const auto batch = is_prefill ? collate_sequences(sequences, device) : collate_last_tokens(sequences, device);
  const at::Tensor last_token_rows = batch.segments.offsets.slice(0, 1).to(at::kLong) - 1;
  at::Tensor logits;
  run_pass(model.parameters(), {}, [&] {
    model.parameters().prepare_non_block_parameters();
    const auto output =
        model.compute_hidden_states(batch, is_prefill ? concat_image_features(sequences) : models::ImageFeatures(),
                                    {.positions = last_token_rows}, cache);
    logits = nn::compute_logits(output.hidden_states, model.output_projection());
  });
  return logits;
}

at::Tensor draw_uniform_numbers(std::span<GeneratedSequence> sequences) {
  at::Tensor uniform_numbers = at::empty({std::ssize(sequences)}, at::kDouble);
  auto* number = uniform_numbers.mutable_data_ptr<double>();
  // The upper 53 bits, as many as a double has.
  for (auto& sequence : sequences) *number++ = static_cast<double>(sequence.random.next() >> 11) * 0x1p-53;
  return uniform_numbers;
}

/// Returns the name of the first parameter with a non-finite value; empty if all are finite.
std::string find_non_finite_parameter(const models::VisionLanguageModel& model) {
  for (const auto& parameter : model.parameters().all()) {
    if (!at::isfinite(parameter.tensor).all().item<bool>()) return parameter.name;
  }
  return "";
}

/// Throws UserError (kFailed) if the maximum of a sequence's logits is not finite.
void check_finite_logits(const at::Tensor& logits, const models::VisionLanguageModel& model) {
  if (logits.is_meta() || at::isfinite(logits.amax(1)).all().item<bool>()) return;
  const std::string name = find_non_finite_parameter(model);
  throw run_error("the model's logits are not finite: {}",
                  name.empty() ? "activations overflow; use fp32 or bf16"
                               : fmt::format("{} has non-finite values; use an earlier checkpoint", name));
}

std::vector<int64_t> choose_next_tokens(at::Tensor logits, std::span<GeneratedSequence> sequences,
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
  if (next_tokens.is_meta()) return std::vector<int64_t>(sequences.size());  // a host dry run has no values
  const at::Tensor tokens = next_tokens.to(at::kCPU);
  return {tokens.const_data_ptr<int64_t>(), tokens.const_data_ptr<int64_t>() + tokens.numel()};
}

nn::GenerationCache make_generation_cache(std::span<const GeneratedSequence> sequences,
                                          const GenerationSettings& settings) {
  std::vector<int64_t> cache_capacities;
  const int64_t max_answer_tokens = std::max(settings.max_new_tokens, settings.min_reserved_new_tokens);
  for (const auto& sequence : sequences) cache_capacities.push_back(sequence.sample.tokens() + max_answer_tokens);
  return {cache_capacities, settings.device};
}

}  // namespace

void check_sampling_ranges(const SamplingSettings& settings) {
  const auto& [temperature, top_k, top_p, penalty, seed] = settings;
  if (!(temperature >= 0)) throw usage_error("--temperature {}: must be at least 0 (greedy)", temperature);
  if (top_k < 0) throw usage_error("--top-k {}: must be 0 (all tokens) or a positive number of tokens", top_k);
  if (!(top_p > 0 && top_p <= 1)) throw usage_error("--top-p {}: must be above 0 and at most 1 (all tokens)", top_p);
  if (!(penalty > 0)) throw usage_error("--repetition-penalty {}: must be above 0 (1: no penalty)", penalty);
}

at::Tensor penalize_repetition(const at::Tensor& logits, std::span<const std::vector<int64_t>> previous_tokens,
                               double penalty) {
  const at::Tensor tokens = memory::copy_to_device(pad_token_sequences(previous_tokens), logits.device());
  const at::Tensor previous_token_logits = logits.gather(1, tokens);
  return logits.scatter(
      1, tokens,
      at::where(previous_token_logits < 0, previous_token_logits * penalty, previous_token_logits / penalty));
}

at::Tensor filter_logits(const at::Tensor& logits, const SamplingSettings& settings) {
  VLMTRAIN_CHECK(settings.temperature > 0, "sampling requires a positive temperature, got {}", settings.temperature);
  at::Tensor result = logits.to(at::kFloat) / settings.temperature;
  if (settings.top_k > 0) result = keep_top_k(result, settings.top_k);
  if (settings.top_p < 1) result = keep_top_p(result, settings.top_p);
  return result;
}

at::Tensor sample_tokens(const at::Tensor& logits, const at::Tensor& uniform) {
  const at::Tensor cumulative_probabilities = at::cumsum(at::softmax(logits, 1, at::kDouble), 1);
  const at::Tensor target =
      uniform.unsqueeze(1) * cumulative_probabilities.narrow(1, cumulative_probabilities.size(1) - 1, 1);
  return (cumulative_probabilities <= target).sum(1);
}

std::vector<std::vector<int64_t>> generate(const models::VisionLanguageModel& model, std::vector<data::Sample> prompts,
                                           const GenerationSettings& settings) {
  if (prompts.empty()) return {};
  const at::NoGradGuard no_gradients;
  models::ImageFeatures features;
  {
    const auto batch = data::collate(prompts).to(settings.device);
    const models::VisionInput vision{
        .pixel_values = batch.pixel_values, .patch_grids = batch.patch_grids, .modalities = batch.modalities};
    const nn::ForwardPassSpec pass_spec{
        .num_vision_passes = models::count_vision_passes(vision, model.vision_tiles_per_pass()),
        .runs_text_model = false};
    run_pass(model.parameters(), pass_spec, [&] { features = model.get_all_image_features(vision); });
  }
  return generate(model, std::move(prompts), features, settings);
}

std::vector<std::vector<int64_t>> generate(const models::VisionLanguageModel& model, std::vector<data::Sample> prompts,
                                           const models::ImageFeatures& image_features,
                                           const GenerationSettings& settings) {
  const at::NoGradGuard no_gradients;
  check_sampling_ranges(settings.sampling);
  std::vector<std::vector<int64_t>> answers(prompts.size());
  std::vector<GeneratedSequence> active_sequences =
      make_sequences(std::move(prompts), image_features, settings.sampling.seed);
  const auto is_at_max_length = [&](const GeneratedSequence& sequence) {
    return sequence.sample.tokens() >= settings.max_length;
  };
  std::erase_if(active_sequences, is_at_max_length);
  std::optional<nn::GenerationCache> cache;
  if (settings.use_cache) cache.emplace(make_generation_cache(active_sequences, settings));
  for (int64_t step = 0; step < settings.max_new_tokens && !active_sequences.empty(); ++step) {
    const at::Tensor logits = compute_next_logits(model, active_sequences, cache ? &*cache : nullptr,
                                                  /*is_first_step=*/step == 0, settings.device);
    if (settings.require_finite_logits) check_finite_logits(logits, model);
    const auto tokens = choose_next_tokens(logits, active_sequences, settings.sampling);
    std::vector<GeneratedSequence> unfinished_sequences;
    std::vector<size_t> active_sequence_indices;
    for (size_t index = 0; index < active_sequences.size(); ++index) {
      if (std::ranges::count(settings.eos_token_ids, tokens[index]) > 0) continue;
      auto& sequence = active_sequences[index];
      answers[sequence.index].push_back(tokens[index]);
      sequence.append(tokens[index]);
      if (is_at_max_length(sequence)) continue;
      unfinished_sequences.push_back(std::move(sequence));
      active_sequence_indices.push_back(index);
    }
    active_sequences = std::move(unfinished_sequences);
    if (cache) cache->batch_select_indices(active_sequence_indices);
  }
  return answers;
}

}  // namespace vlmtrain::engine
