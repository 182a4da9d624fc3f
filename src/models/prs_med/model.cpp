#include "models/prs_med/model.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "models/family.h"
#include "models/network/activation.h"
#include "models/network/patch_embedding.h"
#include "models/network/sam_vit.h"
#include "models/network/tiny_vit.h"
#include "vlmtrain/image/normalize.h"
#include "vlmtrain/memory/memory_tag.h"

namespace vlmtrain::models::prs_med {

namespace {

using nn::Component;
using nn::ParameterScope;

/// ImageNet's mean and deviation, with which SAM and MobileSAM were trained.
const image::Normalization kSamNormalization{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}, 1.0 / 255.0};

ParameterScope make_mask_model_scope(nn::ParameterStore& store, Component component) {
  return {store, component, "mask_model"};
}

std::unique_ptr<MaskImageEncoder> make_mask_image_encoder(const ParameterScope& scope, const Config& config) {
  if (const auto* tiny_vit = std::get_if<TinyVitConfig>(&config.encoder))
    return std::make_unique<TinyVit>(scope, *tiny_vit);
  return std::make_unique<SamVit>(scope, std::get<SamVitConfig>(config.encoder));
}

}  // namespace

MaskPromptProjector::MaskPromptProjector(const ParameterScope& scope, int64_t hidden_size, int64_t channels)
    : linear_1_(scope / "linear_1", hidden_size, hidden_size, /*bias=*/true),
      linear_2_(scope / "linear_2", hidden_size, channels, /*bias=*/true) {}

at::Tensor MaskPromptProjector::operator()(const at::Tensor& hidden) const {
  return linear_2_(activate(Activation::kRelu, linear_1_(hidden)));
}

Model::Model(const Config& config, llava::ModelSpec llava, const nn::ParameterSettings& settings)
    : llava::Model(std::move(llava), settings),
      encoder_(make_mask_image_encoder(make_mask_model_scope(parameters(), Component::kMaskEncoder) / "vision_encoder",
                                       config)),
      decoder_(make_mask_model_scope(parameters(), Component::kMaskDecoder), config.decoder),
      prompt_projector_(ParameterScope(parameters(), Component::kMaskDecoder, "mask_prompt"), config.text_hidden_size,
                        config.channels()) {}

int64_t Model::count_recomputed_tower_blocks() const {
  return std::max<int64_t>(
      0, recompute_block_counts().vision - encoder_->num_blocks());  // the encoder's blocks come first
}

at::Tensor Model::encode(const at::Tensor& pixels, int64_t images_per_pass) const {
  const int64_t images = pixels.size(0);
  const int64_t batch_size = images_per_pass == 0 ? images : std::min(images_per_pass, images);
  std::vector<at::Tensor> features;
  for (int64_t first = 0; first < images; first += batch_size) {
    const image::ByteImages batch{pixels.narrow(0, first, std::min(batch_size, images - first)), kSamNormalization};
    features.push_back((*encoder_)(normalize_images(batch, parameters().options().dtype().toScalarType()),
                                   recompute_block_counts().vision));
  }
  return features.size() == 1 ? features.front() : at::cat(features);
}

at::Tensor Model::compute_mask_logits(const data::MaskBatch& masks, const at::Tensor& hidden,
                                      int64_t images_per_pass) const {
  parameters().prepare_non_block_parameters();
  const memory::ComponentScope memory_scope(memory::Component::kMasks);
  return decoder_(encode(masks.pixels, images_per_pass), masks.pixels.size(-1) / kMaskFeatureStride,
                  prompt_projector_(hidden), masks.image_indices);
}

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  return std::make_unique<Model>(config, llava::ModelSpec::read(config.llava_config, folder), settings);
}

}  // namespace vlmtrain::models::prs_med
