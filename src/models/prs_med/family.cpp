#include "models/family.h"

#include <ATen/ops/cat.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "models/checkpoints/config_checks.h"
#include "models/llava/family.h"
#include "models/llava/model.h"
#include "models/network/config.h"
#include "models/network/layers.h"
#include "models/network/mask_decoder.h"
#include "models/network/mask_encoder.h"
#include "models/network/sam_vit.h"
#include "models/network/tiny_vit.h"
#include "models/processing/chat_encoder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/image/pixel_transforms.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/memory/memory_tag.h"

namespace vlmtrain::models::prs_med {

namespace {

using nlohmann::json;

/// `config.json` of a LLaVA that predicts masks (PRS-Med, Trinh et al. 2025, arXiv 2505.11872, with
/// the mask token of LISA, Lai et al. 2024, arXiv 2308.00692). The keys are LLaVA's, in any
/// format of llava::CheckpointFormat, and:
/// - `model_type`: "prs_med";
/// - `base_model_type`: LLaVA's model_type ("llava", "llava_mistral", "llava_llama");
/// - `mask_config`: {`image_size`, `mask_token`, `vision_encoder` (config of TinyViT with
/// `model_type` "tiny_vit", or of SAM's encoder with "sam_vision_model"), `mask_decoder` (config of
/// SAM's decoder)}.
struct Config {
  nlohmann::json llava_config;                        ///< make_llava_config() of the config.json
  int64_t image_size = 1024;                          ///< side of the mask encoder's square input, in pixels
  std::string mask_token = "<SEG>";                   ///< token in a response that stands for a mask
  std::variant<TinyVitConfig, SamVitConfig> encoder;  ///< of the mask model
  MaskDecoderConfig decoder;
  int64_t text_hidden_size = 0;  ///< of LLaVA's text model

  /// Parses `json_config`, the content of `folder`/config.json. Throws UserError (kBadData) with
  /// the key.
  static Config from_json(const json& json_config, const std::filesystem::path& folder);

  /// Returns the side of the encoder's square input in pixels: `requested_side`
  /// (data.mask_image_size) if given, else image_size. Throws UserError (kUsage) for a side that
  /// the encoder does not support.
  int64_t side(std::optional<int64_t> requested_side) const;
  /// Returns the number of channels of the encoder's features, which the decoder expects, too.
  int64_t channels() const;
};

/// Returns the config.json of the LLaVA without its masks: `config`, the content of
/// `folder`/config.json, with model_type replaced by base_model_type and without mask_config.
/// Throws UserError (kBadData) if base_model_type is missing.
json make_llava_config(const json& config, const std::filesystem::path& folder) {
  json result = config;
  result["model_type"] = io::get<std::string>(config, "base_model_type", (folder / "config.json").string());
  result.erase("base_model_type");
  result.erase("mask_config");
  return result;
}

std::variant<TinyVitConfig, SamVitConfig> read_encoder_config(const json& encoder, int64_t image_size,
                                                              const std::string& source) {
  const auto type = io::get<std::string>(encoder, "model_type", source);
  json encoder_config = encoder;
  encoder_config["image_size"] = image_size;
  if (type == "tiny_vit") return TinyVitConfig::from_json(encoder_config, source);
  if (type == "sam_vision_model") return SamVitConfig::from_json(encoder_config, source);
  throw data_error("{}: mask encoder {} is not supported; supported: tiny_vit, sam_vision_model", source, type);
}

int64_t get_output_channels(const std::variant<TinyVitConfig, SamVitConfig>& encoder) {
  const auto* tiny_vit = std::get_if<TinyVitConfig>(&encoder);
  return tiny_vit != nullptr ? tiny_vit->out_channels : std::get<SamVitConfig>(encoder).output_channels;
}

Config Config::from_json(const json& json_config, const std::filesystem::path& folder) {
  const std::string file = (folder / "config.json").string();
  const std::string source = file + " (mask_config)";
  const auto mask_config = json_config.find("mask_config");
  if (mask_config == json_config.end() || !mask_config->is_object())
    throw config_error("{}: has no section mask_config", file);
  Config config;
  config.llava_config = make_llava_config(json_config, folder);
  config.text_hidden_size = llava::Config::from_json(config.llava_config, folder).text.hidden_size;
  config.image_size = read_size(*mask_config, "image_size", config.image_size, kMaxImageSide, source);
  config.mask_token = io::get_or<std::string>(*mask_config, "mask_token", config.mask_token, source);
  config.encoder = read_encoder_config(mask_config->value("vision_encoder", json{{"model_type", "tiny_vit"}}),
                                       config.image_size, source + ", vision_encoder");
  config.decoder =
      MaskDecoderConfig::from_json(mask_config->value("mask_decoder", json::object()), source + ", mask_decoder");
  if (get_output_channels(config.encoder) != config.channels()) {
    throw data_error("{}: the encoder outputs {} channels, but the decoder needs {}; they must be equal", source,
                     get_output_channels(config.encoder), config.channels());
  }
  config.side(config.image_size);  // throws for a size that the encoder does not support
  return config;
}

int64_t Config::channels() const {
  return decoder.hidden_size();
}

int64_t Config::side(std::optional<int64_t> requested_side) const {
  const int64_t side = requested_side.value_or(image_size);
  if (side % kMaskFeatureStride != 0) {
    throw usage_error("{}: is {}, but a mask encoder needs multiples of {}", keys::data::kMaskImageSize, side,
                      kMaskFeatureStride);
  }
  if (side != image_size && std::holds_alternative<SamVitConfig>(encoder)) {
    throw usage_error(
        "{}: is {}, but SAM's encoder has positions only for {} (image_size in config.json); set it to auto",
        keys::data::kMaskImageSize, side, image_size);
  }
  return side;
}

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

/// Projector from the hidden state of a mask token to a prompt of the mask decoder: two Linears
/// with a ReLU between them.
class MaskPromptProjector {
 public:
  MaskPromptProjector(const nn::ParameterScope& scope, int64_t hidden_size, int64_t channels);
  /// Returns the prompts: [masks, hidden] → [masks, channels].
  at::Tensor operator()(const at::Tensor& hidden) const;

 private:
  nn::Linear linear_1_, linear_2_;
};

MaskPromptProjector::MaskPromptProjector(const ParameterScope& scope, int64_t hidden_size, int64_t channels)
    : linear_1_(scope / "linear_1", hidden_size, hidden_size, /*bias=*/true),
      linear_2_(scope / "linear_2", hidden_size, channels, /*bias=*/true) {}

at::Tensor MaskPromptProjector::operator()(const at::Tensor& hidden) const {
  return linear_2_(activate(Activation::kRelu, linear_1_(hidden)));
}

/// PRS-Med: LLaVA with a mask encoder of the image and SAM's mask decoder, which fuses the
/// encoder's features with the hidden states of the mask tokens by attention in both directions.
class Model final : public llava::Model {
 public:
  Model(const Config& config, llava::ModelSpec llava, const nn::ParameterSettings& settings);

  bool predicts_masks() const override { return true; }
  at::Tensor compute_mask_logits(const data::MaskBatch& masks, const at::Tensor& hidden,
                                 int64_t images_per_pass) const override;
  /// Returns the number of blocks of mask encoder and vision tower. The encoder's are recomputed
  /// first, since their activations are by far the largest.
  int64_t num_vision_blocks() const override { return encoder_->num_blocks() + llava::Model::num_vision_blocks(); }

 private:
  int64_t count_recomputed_tower_blocks() const override;
  /// Encodes pixels, uint8 [images, 3, side, side], at most `images_per_pass` images at a time (0:
  /// all).
  at::Tensor encode(const at::Tensor& pixels, int64_t images_per_pass) const;

  std::unique_ptr<MaskImageEncoder> encoder_;
  MaskDecoder decoder_;
  MaskPromptProjector prompt_projector_;
};

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

std::unique_ptr<models::Processor> load_processor(const nlohmann::json& config_json,
                                                  const std::filesystem::path& folder,
                                                  const ProcessorSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  return llava::load_processor(config.llava_config, folder, settings, [&](const text::Tokenizer& tokenizer) {
    const auto token = tokenizer.token_to_id(config.mask_token);
    if (!token) {
      throw data_error(
          "{}: the tokenizer has no token {}, the mask_token of config.json; vlmtrain init --text-model adds it",
          (folder / "tokenizer.json").string(), config.mask_token);
    }
    return MaskInputSettings{
        .side = config.side(settings.mask_image_size), .token_id = *token, .token = config.mask_token};
  });
}

data::SampleShape compute_image_sample_shape(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                             image::ImageSize size, std::optional<int64_t> max_pixels) {
  return llava::compute_image_sample_shape(make_llava_config(config_json, folder), folder, size, max_pixels);
}

int64_t get_mask_side(const nlohmann::json& config_json, const std::filesystem::path& folder,
                      std::optional<int64_t> requested_side) {
  return Config::from_json(config_json, folder).side(requested_side);
}

ContextLength get_context_length(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  return llava::get_context_length(make_llava_config(config_json, folder), folder);
}

double num_parameters(const nlohmann::json& config_json, const std::filesystem::path& folder) {
  const Config config = Config::from_json(config_json, folder);
  const double encoder =
      std::visit([](const auto& encoder_config) { return encoder_config.num_parameters(); }, config.encoder);
  return llava::num_parameters(config.llava_config, folder) + encoder + config.decoder.num_parameters();
}

}  // namespace

std::unique_ptr<VisionLanguageModel> build(const nlohmann::json& config_json, const std::filesystem::path& folder,
                                           const nn::ParameterSettings& settings) {
  const Config config = Config::from_json(config_json, folder);
  return std::make_unique<Model>(config, llava::ModelSpec::read(config.llava_config, folder), settings);
}

Family make_family() {
  return {.model_types = {"prs_med"},
          .build = build,
          .load_processor = load_processor,
          .compute_image_sample_shape = compute_image_sample_shape,
          .get_context_length = get_context_length,
          .num_parameters = num_parameters,
          .get_mask_side = get_mask_side,
          .assemble_checkpoint = assemble_checkpoint,
          .default_modules_to_save = {{"mask_model.vision_encoder", nn::Component::kMaskEncoder},
                                      {"mask_model.mask_decoder", nn::Component::kMaskDecoder},
                                      {"mask_model.prompt_encoder", nn::Component::kMaskDecoder},
                                      {"mask_prompt", nn::Component::kMaskDecoder}}};
}

}  // namespace vlmtrain::models::prs_med
