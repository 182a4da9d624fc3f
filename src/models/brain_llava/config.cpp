#include "models/brain_llava/config.h"

#include <c10/core/ScalarType.h>

#include "models/checkpoints/config_checks.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::brain_llava {

namespace {

constexpr int64_t kMaxVolumes = 4096;  // per sample; rejects only damaged configs

/// Returns true if a volume of `size` voxels has at least one patch per token along each axis.
bool has_enough_patches(const Config& config, const VolumeShape& size) {
  const VolumeShape grid = config.vision.compute_grid(size);
  for (size_t axis = 0; axis < grid.size(); ++axis) {
    if (grid[axis] < config.tokens[axis]) return false;
  }
  return true;
}

nlohmann::json get_required_section(const nlohmann::json& config, const char* key, const std::string& source) {
  auto section = get_section(config, key, source);
  if (section.is_null()) throw data_error("{}: has no section {}", source, key);
  return section;
}

}  // namespace

Config Config::from_json(const nlohmann::json& json, const std::filesystem::path& folder) {
  const std::string source = (folder / "config.json").string();
  Config config;
  const auto vision = get_required_section(json, "vision_config", source);
  const auto type = io::get_or<std::string>(vision, "model_type", std::string(kTowerType), source);
  if (type != kTowerType) {
    throw data_error("{} (vision_config): vision tower {} is not supported in brain_llava; {} is", source, type,
                     kTowerType);
  }
  config.vision = VolumeTransformerConfig::from_json(vision, source + " (vision_config)");
  if (const auto projector = get_section(json, "projector_config", source); !projector.is_null()) {
    const std::string projector_source = source + " (projector_config)";
    config.tokens = read_volume_shape(projector, "tokens", config.tokens, kMaxImageSide, projector_source);
    config.projector_activation = parse_activation(
        io::get_or<std::string>(projector, "hidden_act", "gelu", projector_source), "hidden_act", projector_source);
  }
  config.text = LlamaConfig::from_json(get_required_section(json, "text_config", source), source + " (text_config)");
  config.text.tie_word_embeddings |= io::get_or<bool>(json, "tie_word_embeddings", false, source);
  config.image_token_id = io::get<int64_t>(json, "image_token_id", source);
  if (config.image_token_id < 0 || config.image_token_id >= config.text.vocab_size) {
    throw data_error("{}: image_token_id {} is not in the vocabulary of {}", source, config.image_token_id,
                     config.text.vocab_size);
  }
  if (json.contains("max_volumes")) config.max_volumes = read_size(json, "max_volumes", 1, kMaxVolumes, source);
  if (!has_enough_patches(config, config.vision.image_size)) {
    throw data_error("{}: projector_config.tokens {} exceeds the {} patches of a volume of image_size {}", source,
                     format_volume_shape(config.tokens),
                     format_volume_shape(config.vision.compute_grid(config.vision.image_size)),
                     format_volume_shape(config.vision.image_size));
  }
  return config;
}

data::PixelRowShape Config::make_pixel_row_shape(const std::optional<VolumeShape>& requested,
                                                 at::ScalarType dtype) const {
  const VolumeShape size = resolve_volume_size(requested);
  return {.dtype = dtype, .channels = vision.channels, .depth = size[0], .height = size[1], .width = size[2]};
}

VolumeShape Config::resolve_volume_size(const std::optional<VolumeShape>& requested) const {
  const VolumeShape size = vision.resolve_volume_size(requested);
  if (!has_enough_patches(*this, size)) {
    throw usage_error("{}: {} gives {} patches, fewer than the projector's {} tokens per volume; give at least {}",
                      keys::data::kVolumeSize, format_volume_shape(size),
                      format_volume_shape(vision.compute_grid(size)), format_volume_shape(tokens),
                      format_volume_shape({tokens[0] * vision.patch_size, tokens[1] * vision.patch_size,
                                           tokens[2] * vision.patch_size}));
  }
  return size;
}

}  // namespace vlmtrain::models::brain_llava
