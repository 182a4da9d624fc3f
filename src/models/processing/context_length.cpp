#include "models/processing/context_length.h"

#include <algorithm>
#include <cmath>

#include "models/family.h"

namespace vlmtrain::models {

namespace {

using nlohmann::json;

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
