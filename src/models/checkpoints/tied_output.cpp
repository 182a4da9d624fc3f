#include "models/checkpoints/tied_output.h"

#include <ATen/ops/equal.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "models/checkpoints/load_weights.h"
#include "models/checkpoints/tensor_source.h"
#include "models/family.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 2> kOutputSuffixes{"lm_head.weight", "decoder.head.weight"};
constexpr std::array<std::string_view, 2> kEmbeddingSuffixes{"embed_tokens.weight", "decoder.token_embedding.weight"};

constexpr const char* kTieEmbeddingsKey = "tie_word_embeddings";
constexpr const char* kNanoVlmTieEmbeddingsKey = "lm_tie_weights";

bool is_embedding_name(std::string_view name) {
  return std::ranges::any_of(kEmbeddingSuffixes, [&](std::string_view suffix) { return name.ends_with(suffix); });
}

/// Returns true if two matrices have equal values. Compares blocks of rows to avoid converted
/// copies of whole matrices.
bool have_equal_values(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.dim() != 2) return false;
  constexpr int64_t kElementsPerBlock = 1 << 20;  // 4 MB in fp32; not tuned
  const int64_t rows_per_block = std::max<int64_t>(1, kElementsPerBlock / std::max<int64_t>(1, a.size(1)));
  for (int64_t row = 0; row < a.size(0); row += rows_per_block) {
    const int64_t rows = std::min(rows_per_block, a.size(0) - row);
    const at::Tensor a_rows = a.narrow(0, row, rows), b_rows = b.narrow(0, row, rows);
    const bool has_same_bytes = a.scalar_type() == b.scalar_type() &&
                                std::memcmp(a_rows.const_data_ptr(), b_rows.const_data_ptr(), a_rows.nbytes()) == 0;
    if (!has_same_bytes && !at::equal(a_rows.to(at::kFloat), b_rows.to(at::kFloat))) return false;
  }
  return true;
}

bool compare_stored_output_tensors(const OutputTensorNames& tensors, const fs::path& folder) {
  const io::CheckpointTensors weights(folder);
  const bool is_equal = have_equal_values(weights.tensor(tensors.embedding), weights.tensor(tensors.output));
  weights.release(tensors.embedding);
  weights.release(tensors.output);
  return is_equal;
}

template <class Json>
bool get_config_flag(const Json& config, const char* key, bool fallback) {
  const auto it = config.find(key);
  return it == config.end() || !it->is_boolean() ? fallback : it->template get<bool>();
}

/// Returns whether transformers 5.24 ties the output projection (configuration_*.py of the
/// families).
template <class Json>
bool is_tied_in_transformers(const Json& config) {
  // InternVL has no default: without the key the weights decide, also in transformers.
  constexpr std::array<std::string_view, 3> kModelTypesTiedByDefault{"gemma3", "gemma3_text", "smollm3"};
  // Model types whose transformers class ignores the key in text_config.
  constexpr std::array<std::string_view, 4> kModelTypesIgnoringTextConfigTying{"qwen3_vl", "idefics3", "smolvlm",
                                                                               "gemma3"};
  const std::string type = config.value("model_type", "");
  const bool is_tied_by_default = std::ranges::find(kModelTypesTiedByDefault, type) != kModelTypesTiedByDefault.end();
  if (get_config_flag(config, kTieEmbeddingsKey, is_tied_by_default)) return true;
  const auto text = config.find("text_config");
  const bool reads_text_config =
      std::ranges::find(kModelTypesIgnoringTextConfigTying, type) == kModelTypesIgnoringTextConfigTying.end() &&
      !is_tied_by_default;
  return reads_text_config && text != config.end() && text->is_object() &&
         get_config_flag(*text, kTieEmbeddingsKey, false);
}

template <class Json>
void set_tie_embeddings_keys(Json& config, bool tied) {
  // Only nanoVLM's config.json has this key.
  if (config.contains("lm_hidden_dim")) {
    if (get_config_flag(config, kNanoVlmTieEmbeddingsKey, true) != tied) config[kNanoVlmTieEmbeddingsKey] = tied;
    return;
  }
  const auto text = config.find("text_config");
  if (text != config.end() && text->is_object() && get_config_flag(*text, kTieEmbeddingsKey, tied) != tied)
    (*text)[kTieEmbeddingsKey] = tied;
  if (get_config_flag(config, kTieEmbeddingsKey, tied) != tied || is_tied_in_transformers(config) != tied)
    config[kTieEmbeddingsKey] = tied;
}

}  // namespace

bool is_output_projection(std::string_view name) {
  return std::ranges::any_of(kOutputSuffixes, [&](std::string_view suffix) { return name.ends_with(suffix); });
}

std::optional<OutputTensorNames> find_output_tensor_names(std::span<const std::string> names) {
  const auto output = std::ranges::find_if(names, is_output_projection);
  const auto embedding = std::ranges::find_if(names, is_embedding_name);
  if (output == names.end() || embedding == names.end()) return std::nullopt;
  return OutputTensorNames{.embedding = *embedding, .output = *output};
}

bool are_output_tensors_equal(const OutputTensorNames& tensors, const fs::path& folder) {
  static WeightFileCache<bool> cache;
  return cache.get_or_compute(folder, [&] { return compare_stored_output_tensors(tensors, folder); });
}

bool has_tied_output(const VisionLanguageModel& model) {
  return std::ranges::none_of(get_base_parameters(model),
                              [](const nn::Parameter& parameter) { return is_output_projection(parameter.name); });
}

bool may_tie_output(const nlohmann::json& config) {
  const auto text = config.find("text_config");
  const bool is_tied_in_text_config =
      text != config.end() && text->is_object() && get_config_flag(*text, kTieEmbeddingsKey, false);
  // Some model types are tied without the key, so a missing key counts as tied.
  return is_tied_in_text_config || get_config_flag(config, get_tie_config_key(config).data(), true);
}

std::string_view get_tie_config_key(const nlohmann::json& config) {
  return config.contains("lm_hidden_dim") ? kNanoVlmTieEmbeddingsKey : kTieEmbeddingsKey;
}

void set_tied_output(nlohmann::ordered_json& config, bool tied) {
  set_tie_embeddings_keys(config, tied);
}

void set_tied_output(nlohmann::json& config, bool tied) {
  set_tie_embeddings_keys(config, tied);
}

nlohmann::json reconcile_tied_output(nlohmann::json config, const Family& family, const std::filesystem::path& folder) {
  if (!may_tie_output(config)) return config;
  const auto tensors = find_output_tensor_names(io::read_checkpoint_tensor_names(folder));
  if (!tensors) return config;
  // The family decides whether the model is tied, so a model is built, without memory for weights.
  const auto model = family.build(config, folder, {at::TensorOptions(at::kFloat).device(at::kMeta)});
  if (has_tied_output(*model) && !are_output_tensors_equal(*tensors, folder)) set_tied_output(config, false);
  return config;
}

}  // namespace vlmtrain::models
