#include "models/processing/extended_context.h"

#include <algorithm>
#include <cmath>

#include "models/registry.h"

namespace vlmtrain::models {

namespace {

using nlohmann::json;

constexpr double kMostPositions = 1e12;

double number_in(const json& object, const char* key, double otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : otherwise;
}

/// Of one set of rope settings, or of one for each type of layer.
double extended(const json& rope, double original, double positions) {
  if (!rope.is_object()) return positions;
  const double own = number_in(rope, "original_max_position_embeddings", original);
  double most = std::max(positions, number_in(rope, "factor", 1) * own);
  for (const auto& [name, of_layers] : rope.items()) {
    if (of_layers.is_object()) most = std::max(most, extended(of_layers, own, positions));
  }
  return most;
}

}  // namespace

int64_t extended_context(const json& config, int64_t positions) {
  const auto before = static_cast<double>(positions);
  double most = before;
  const auto look_at = [&](const json& section) {
    if (!section.is_object()) return;
    const double original = number_in(section, "original_max_position_embeddings", before);
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      if (const auto rope = section.find(key); rope != section.end()) most = extended(*rope, original, most);
    }
  };
  look_at(config);
  for (const char* name : {"text_config", "llm_config", "language_config"}) {
    if (const auto section = config.find(name); section != config.end()) look_at(*section);
  }
  return most < kMostPositions ? std::max(positions, static_cast<int64_t>(std::llround(most))) : positions;
}

ContextLength context_length_of(const json& config, const std::filesystem::path& folder) {
  ContextLength context = family_of(config, folder).context_length(config, folder);
  if (!context.refuses_longer) context.tokens = extended_context(config, context.tokens);
  return context;
}

}  // namespace vlmtrain::models
