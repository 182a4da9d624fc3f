#include "models/gemma4/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <utility>

#include "models/family.h"
#include "models/gemma4/patch_inputs.h"

namespace vlmtrain::models::gemma4 {

namespace {

using nn::Component;
using nn::InitialValues;
using nn::ParameterScope;

constexpr double kLayerNormEps = 1e-5;  // torch.nn.LayerNorm's default
constexpr double kMaxByteValue = 255;

/// The tower sees pixels from −1 to 1, the embedding of patches from 0 to 1.
image::Normalization make_normalization(bool has_tower) {
  const double mean = has_tower ? 0.5 : 0, deviation = has_tower ? 0.5 : 1;
  return {.mean = {mean, mean, mean}, .std = {deviation, deviation, deviation}, .rescale_factor = 1 / kMaxByteValue};
}

/// Names of modules and of the tensors of gemma4_unified's checkpoints, where they differ.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kUnifiedPrefixes{
    {{"model.embed_vision.multimodal_embedder.", "model.embed_vision."},
     {"model.embed_vision.", "model.vision_embedder."}}};

double get_projector_norm_eps(const Config& config) {
  return std::visit([](const auto& vision) { return vision.rms_norm_eps; }, config.vision);
}

int64_t get_vision_features(const Config& config) {
  if (const auto* const tower = std::get_if<TowerConfig>(&config.vision)) return tower->hidden_size;
  return std::get<PatchEmbedderConfig>(config.vision).embed_dim;
}

}  // namespace

PatchEmbedder::PatchEmbedder(const nn::ParameterScope& scope, const PatchEmbedderConfig& config,
                             const PatchShape& patches)
    : patch_format_(patches.patch_format()),
      pixel_norm_(scope / "patch_ln1", 3 * patches.pixels_per_token(), kLayerNormEps),
      projection_(scope / "patch_dense", 3 * patches.pixels_per_token(), config.embed_dim, /*bias=*/true),
      patch_norm_(scope / "patch_ln2", config.embed_dim, kLayerNormEps),
      position_table_(scope.add_embedding("pos_embedding", {config.num_positions, kNumPatchAxes, config.embed_dim},
                                          InitialValues::zeros())),
      position_norm_(scope / "pos_norm", config.embed_dim, kLayerNormEps) {}

at::Tensor PatchEmbedder::operator()(const image::ByteImages& pixels, std::span<const data::PatchGrid> grids) const {
  const auto [patches, positions] = make_patch_inputs(pixels, grids, patch_format_, position_table_);
  const at::Tensor position_embeddings =
      sum_position_embeddings(position_table_.flatten(0, 1), positions, /*stride=*/kNumPatchAxes, /*row_offset=*/1);
  const at::Tensor embeddings = patch_norm_(projection_(pixel_norm_.make_linear_input(patches)));
  return position_norm_(embeddings + position_embeddings);
}

Model::Model(Config config, const nn::ParameterSettings& settings)
    : VisionLanguageModel(settings),
      config_(std::move(config)),
      projector_norm_eps_(get_projector_norm_eps(config_)),
      tower_(std::holds_alternative<TowerConfig>(config_.vision)
                 ? std::optional<VisionTower>(
                       std::in_place, ParameterScope(parameters(), Component::kVisionTower, "model.vision_tower"),
                       std::get<TowerConfig>(config_.vision), config_.processor.patches)
                 : std::nullopt),
      embedder_(tower_ ? std::nullopt
                       : std::optional<PatchEmbedder>(
                             std::in_place, ParameterScope(parameters(), Component::kProjector, "model.embed_vision"),
                             std::get<PatchEmbedderConfig>(config_.vision), config_.processor.patches)),
      projection_(ParameterScope(parameters(), Component::kProjector,
                                 tower_ ? "model.embed_vision.embedding_projection"
                                        : "model.embed_vision.multimodal_embedder.embedding_projection"),
                  get_vision_features(config_), config_.text.hidden_size, /*bias=*/false),
      text_(ParameterScope(parameters(), Component::kLanguageModel, "model.language_model"), config_.text,
            config_.tie_word_embeddings, ParameterScope(parameters(), Component::kLanguageModel, "lm_head")) {}

ImageFeatures Model::get_image_features(const VisionInput& vision, bool with_patch_features) const {
  const image::ByteImages pixels{vision.pixel_values, make_normalization(tower_.has_value())};
  ImageFeatures result;
  at::Tensor tokens;
  if (tower_) {
    tokens = (*tower_)(pixels, vision.patch_grids, recompute_block_counts().vision,
                       with_patch_features ? &result.patch_features : nullptr);
  } else {
    tokens = (*embedder_)(pixels, vision.patch_grids);
    if (with_patch_features) result.patch_features = tokens;
  }
  result.features = projection_(nn::rms_norm_without_weight(tokens, projector_norm_eps_));
  return result;
}

data::MicroBatch Model::replace_generated_media(data::MicroBatch batch) const {
  const MediaTokenIds& ids = config_.processor.tokens;
  for (const int64_t id : {ids.image, ids.video, ids.audio})
    batch.token_ids = batch.token_ids.masked_fill(batch.token_ids == id, config_.text.pad_token_id);
  return batch;
}

ModelOutput Model::compute_hidden_states(const data::MicroBatch& batch, const ImageFeatures& image_features,
                                         const OutputRequest& request, nn::GenerationCache* cache) const {
  std::vector<int64_t> tokens_per_image;
  const int64_t patches_per_token = config_.processor.patches.patch_format().patches_per_token();
  for (const data::PatchGrid& grid : batch.patch_grids) {
    tokens_per_image.insert(tokens_per_image.end(), static_cast<size_t>(grid.frames),
                            grid.patches_per_frame() / patches_per_token);
  }
  // Training data have no media tokens without media.
  return text_(at::GradMode::is_enabled() ? batch : replace_generated_media(batch), image_features, tokens_per_image,
               request, recompute_block_counts().language_counts(), cache);
}

std::string Model::get_checkpoint_tensor_name(const std::string& parameter) const {
  if (tower_) return parameter;
  for (const auto& [module_prefix, checkpoint_prefix] : kUnifiedPrefixes) {
    if (parameter.starts_with(module_prefix))
      return std::string(checkpoint_prefix) + parameter.substr(module_prefix.size());
  }
  return parameter;
}

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  return std::make_unique<Model>(Config::from_json(config_json, (folder / "config.json").string()), settings);
}

}  // namespace vlmtrain::models::gemma4
