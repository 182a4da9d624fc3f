#include "models/family.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models {

namespace {

using nlohmann::json;

/// Returns all families. Register a new one here.
const std::vector<Family>& get_families() {
  static const std::vector<Family> table{
      brain_llava::make_family(), causal_lm::make_family(),        gemma3::make_family(),   gemma4::make_family(),
      idefics3::make_family(),    idefics3::make_smolvlm_family(), internvl::make_family(), llava::make_family(),
      nanovlm::make_family(),     prs_med::make_family(),          qwen2_vl::make_family(), qwen3_vl::make_family()};
  return table;
}

/// Returns the model types of the families that satisfy `predicate`.
template <class Predicate>
std::string join_model_types(const Predicate& predicate) {
  std::vector<std::string_view> model_types;
  for (const Family& family : get_families()) {
    if (predicate(family)) model_types.insert(model_types.end(), family.model_types.begin(), family.model_types.end());
  }
  return fmt::format("{}", fmt::join(model_types, ", "));
}

const Family& find_family_without_type(const json& config, const std::string& source) {
  std::vector<std::string_view> family_descriptions;
  for (const Family& family : get_families()) {
    if (family.matches_config == nullptr) continue;
    if (family.matches_config(config)) return family;
    family_descriptions.push_back(family.config_description);
  }
  throw data_error("{}: the key \"model_type\" is missing; families that work without it: {}", source,
                   fmt::join(family_descriptions, ", "));
}

/// Limit up to which extended lengths count. Without it, the conversion of absurd factors to
/// int64_t would be undefined.
constexpr double kMaxExtendedPositions = 1e12;

double get_number_or(const json& object, const char* key, double fallback) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>() : fallback;
}

/// Returns the larger of `positions` and the length that RoPE settings extend
/// `default_original_positions` to. `rope` has the settings of all layers, or an object of settings
/// per layer type.
double compute_max_positions(const json& rope, double default_original_positions, double positions) {
  if (!rope.is_object()) return positions;
  const double original_positions = get_number_or(rope, "original_max_position_embeddings", default_original_positions);
  double max_context_length = std::max(positions, get_number_or(rope, "factor", 1) * original_positions);
  for (const auto& [name, layer_rope] : rope.items()) {
    if (layer_rope.is_object())
      max_context_length =
          std::max(max_context_length, compute_max_positions(layer_rope, original_positions, positions));
  }
  return max_context_length;
}

}  // namespace

std::string get_family_name(const Family& family) {
  if (family.model_types.empty()) return std::string(family.config_description);
  return fmt::format("{}", fmt::join(family.model_types, ", "));
}

std::vector<std::string> list_family_names() {
  std::vector<std::string> names;
  for (const Family& family : get_families()) names.push_back(get_family_name(family));
  return names;
}

std::string format_video_model_types() {
  return join_model_types([](const Family& family) { return family.compute_video_sample_shape != nullptr; });
}

std::string format_volume_model_types() {
  return join_model_types([](const Family& family) { return family.compute_volume_sample_shape != nullptr; });
}

const Family& find_family(const json& config, const std::filesystem::path& folder) {
  const std::string source = (folder / "config.json").string();
  if (config.is_object() && !config.contains("model_type")) return find_family_without_type(config, source);
  const auto type = io::get<std::string>(config, "model_type", source);
  std::vector<std::string_view> supported_families;
  for (const Family& family : get_families()) {
    if (std::find(family.model_types.begin(), family.model_types.end(), type) != family.model_types.end())
      return family;
    supported_families.insert(supported_families.end(), family.model_types.begin(), family.model_types.end());
    if (family.matches_config != nullptr) supported_families.push_back(family.config_description);
    for (const auto& [unsupported, reason] : family.unsupported_model_types) {
      if (unsupported == type) throw data_error("{}: model_type {} is not supported: {}", source, type, reason);
    }
  }
  throw data_error("{}: model_type {} is not supported; supported: {}", source, type,
                   fmt::join(supported_families, ", "));
}

int64_t compute_extended_context(const json& config, int64_t positions) {
  const auto initial_positions = static_cast<double>(positions);
  double max_context_length = initial_positions;
  const auto extend_context_by_section = [&](const json& section) {
    if (!section.is_object()) return;
    const double original_positions = get_number_or(section, "original_max_position_embeddings", initial_positions);
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      if (const auto rope = section.find(key); rope != section.end())
        max_context_length = compute_max_positions(*rope, original_positions, max_context_length);
    }
  };
  extend_context_by_section(config);
  for (const char* name : {"text_config", "llm_config", "language_config"}) {
    if (const auto section = config.find(name); section != config.end()) extend_context_by_section(*section);
  }
  return max_context_length < kMaxExtendedPositions
             ? std::max(positions, static_cast<int64_t>(std::llround(max_context_length)))
             : positions;
}

ContextLength read_context_length(const json& config, const std::filesystem::path& folder) {
  ContextLength context = find_family(config, folder).get_context_length(config, folder);
  if (!context.is_hard_limit) context.tokens = compute_extended_context(config, context.tokens);
  return context;
}

}  // namespace vlmtrain::models
