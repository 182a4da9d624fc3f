#include "models/checkpoints/tensor_names.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/pow.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "models/checkpoints/load_weights.h"
#include "models/checkpoints/tensor_source.h"
#include "models/family.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

namespace {

bool has_name_with_prefix(std::span<const std::string> tensor_names, std::string_view prefix) {
  return std::ranges::any_of(tensor_names, [&](const std::string& name) { return name.starts_with(prefix); });
}

/// Returns the suffixes of the name that start after a dot and have at least two components,
/// longest first.
std::vector<std::string_view> list_name_suffixes(std::string_view name) {
  std::vector<std::string_view> suffixes{name};
  for (size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    const std::string_view suffix = name.substr(dot + 1);
    if (suffix.find('.') != std::string_view::npos) suffixes.push_back(suffix);
  }
  return suffixes;
}

std::string format_example_names(std::span<const std::string> names,
                                 const std::unordered_set<std::string_view>& excluded) {
  constexpr size_t kMaxExamples = 3;  // enough to show the pattern, short enough for one line
  std::vector<std::string> examples;
  size_t count = 0;
  for (const auto& name : names) {
    if (excluded.contains(name)) continue;
    if (++count <= kMaxExamples) examples.push_back(make_excerpt(name));
  }
  return fmt::format("{}{}", fmt::join(examples, ", "), count > kMaxExamples ? ", …" : "");
}

std::string describe_prefix_mapping(const PrefixMapping& mapping) {
  if (mapping.model_prefix.empty()) return fmt::format("without the prefix \"{}\"", mapping.file_prefix);
  if (mapping.file_prefix.empty()) return fmt::format("with the prefix \"{}\"", mapping.model_prefix);
  return fmt::format("with the prefix \"{}\" instead of \"{}\"", mapping.model_prefix, mapping.file_prefix);
}

/// Appends the RoPE bases in all sections: numbers whose key ends with "theta", and the keys of
/// nanoVLM and Gemma 3.
void collect_rope_thetas(const nlohmann::json& config, std::vector<double>& thetas) {
  for (const auto& [key, value] : config.items()) {
    if (value.is_object()) collect_rope_thetas(value, thetas);
    const bool is_theta_key = key.ends_with("theta") || key == "lm_re_base" || key == "rope_local_base_freq";
    if (is_theta_key && value.is_number()) thetas.push_back(value.get<double>());
  }
}

}  // namespace

StateDictKeyMap StateDictKeyMap::detect(std::span<const PrefixAliases> table, std::span<const std::string> tensors) {
  StateDictKeyMap key_map;
  for (const auto& [parameter, checkpoint_prefixes] : table) {
    const auto it =
        std::ranges::find_if(checkpoint_prefixes, [&](auto prefix) { return has_name_with_prefix(tensors, prefix); });
    key_map.prefix_pairs_.emplace_back(parameter, it == checkpoint_prefixes.end() ? checkpoint_prefixes.front() : *it);
  }
  return key_map;
}

std::string StateDictKeyMap::to_checkpoint_key(const std::string& parameter) const {
  for (const auto& [parameter_prefix, checkpoint_prefix] : prefix_pairs_) {
    if (parameter.starts_with(parameter_prefix))
      return std::string(checkpoint_prefix) + parameter.substr(parameter_prefix.size());
  }
  return parameter;
}

PrefixMapping find_prefix_mapping(std::span<const std::string> file_tensor_names,
                                  std::span<const std::string> model_tensor_names) {
  std::unordered_map<std::string_view, std::vector<std::string_view>> model_names_by_suffix;
  for (const std::string& name : model_tensor_names) {
    for (const std::string_view suffix : list_name_suffixes(name)) model_names_by_suffix[suffix].push_back(name);
  }
  std::map<std::pair<std::string_view, std::string_view>, size_t> prefix_match_counts;
  for (const std::string& name : file_tensor_names) {
    for (const std::string_view suffix : list_name_suffixes(name)) {
      const auto it = model_names_by_suffix.find(suffix);
      if (it == model_names_by_suffix.end()) continue;
      for (const std::string_view match : it->second) {
        const std::string_view prefix = std::string_view(name).substr(0, name.size() - suffix.size());
        ++prefix_match_counts[{prefix, match.substr(0, match.size() - suffix.size())}];
      }
      break;
    }
  }
  PrefixMapping best_mapping;
  for (const auto& [mapping, tensors] : prefix_match_counts) {
    if (mapping.first == mapping.second || tensors <= best_mapping.num_matches) continue;
    best_mapping = {
        .file_prefix = std::string(mapping.first), .model_prefix = std::string(mapping.second), .num_matches = tensors};
  }
  return best_mapping;
}

void reject_mismatched_names(const std::string& folder, std::span<const std::string> expected,
                             std::span<const std::string> model_tensor_names,
                             std::span<const std::string> file_tensor_names, bool may_all_be_missing) {
  const std::unordered_set<std::string_view> file_tensor_name_set(file_tensor_names.begin(), file_tensor_names.end()),
      expected_set(expected.begin(), expected.end());
  const auto num_missing_names = static_cast<size_t>(
      std::ranges::count_if(expected, [&](const std::string& name) { return !file_tensor_name_set.contains(name); }));
  if (num_missing_names * 2 <= expected.size() || file_tensor_names.empty()) return;
  PrefixMapping mapping = find_prefix_mapping(file_tensor_names, expected);
  if (const PrefixMapping module_mapping = find_prefix_mapping(file_tensor_names, model_tensor_names);
      module_mapping.num_matches > mapping.num_matches) {
    mapping = module_mapping;
  }
  // One prefix may cover only one of several modules, so a third of the names suffices. Not tuned.
  const bool is_likely_rename = mapping.num_matches * 3 >= num_missing_names;
  if (may_all_be_missing && !is_likely_rename) return;
  throw data_error(
      "{}: {} of {} tensors of config.json's model are missing, such as {} (the files have {}); {}, or save the "
      "checkpoint again with transformers",
      folder, num_missing_names, expected.size(), format_example_names(expected, file_tensor_name_set),
      format_example_names(file_tensor_names, expected_set),
      is_likely_rename ? fmt::format("rename them ({} match {})", mapping.num_matches, describe_prefix_mapping(mapping))
                       : "use the config.json that belongs to the weights");
}

bool are_close(const at::Tensor& stored, const at::Tensor& computed) {
  // Relative tolerances. In 16 bits they are one to two units in the last place; in fp32 they allow
  // for another order of operations. Not tuned.
  const double tolerance = stored.scalar_type() == at::kBFloat16 ? 1e-2
                           : stored.scalar_type() == at::kHalf   ? 2e-3
                                                                 : 1e-5;
  return stored.sizes() == computed.sizes() &&
         at::allclose(stored.to(at::kDouble), computed.to(at::kDouble), tolerance, 1e-6);
}

bool is_default_table(std::string_view name, const at::Tensor& table, const nlohmann::json& config) {
  const at::Tensor flat_table = table.flatten();
  if (name.ends_with("position_ids")) {
    return at::equal(flat_table.to(at::kLong), at::arange(flat_table.numel(), at::kLong));
  }
  // 10000 is the default RoPE base of transformers' models.
  std::vector<double> thetas{10000};
  if (config.is_object()) collect_rope_thetas(config, thetas);
  const at::Tensor inv_freq_exponents =
      at::arange(flat_table.numel(), at::kDouble) / static_cast<double>(-flat_table.numel());
  return std::ranges::any_of(thetas,
                             [&](double theta) { return are_close(flat_table, at::pow(theta, inv_freq_exponents)); });
}

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
  constexpr std::array<std::string_view, 5> kModelTypesTiedByDefault{"gemma3", "gemma3_text", "gemma4",
                                                                     "gemma4_unified", "smollm3"};
  // Model types whose transformers class ignores the key in text_config.
  constexpr std::array<std::string_view, 6> kModelTypesIgnoringTextConfigTying{
      "qwen3_vl", "idefics3", "smolvlm", "gemma3", "gemma4", "gemma4_unified"};
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
