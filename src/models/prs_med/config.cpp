#include "models/prs_med/config.h"

#include "models/checkpoints/config_checks.h"
#include "models/llava/config.h"
#include "models/network/config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::prs_med {

namespace {

using nlohmann::json;

std::variant<TinyVitConfig, SamVitConfig> read_encoder_config(const json& encoder, int64_t image_size,
                                                              const std::string& source) {
  const auto type = io::get<std::string>(encoder, "model_type", source);
  json encoder_config = encoder;
  encoder_config["image_size"] = image_size;
  if (type == "tiny_vit") return TinyVitConfig::from_json(encoder_config, source);
  if (type == "sam_vision_model") return SamVitConfig::from_json(encoder_config, source);
  throw data_error("{}: mask encoder {} is not supported; tiny_vit and sam_vision_model are", source, type);
}

int64_t get_output_channels(const std::variant<TinyVitConfig, SamVitConfig>& encoder) {
  const auto* tiny_vit = std::get_if<TinyVitConfig>(&encoder);
  return tiny_vit != nullptr ? tiny_vit->out_channels : std::get<SamVitConfig>(encoder).output_channels;
}

}  // namespace

json make_llava_config(const json& config, const std::filesystem::path& folder) {
  json result = config;
  result["model_type"] = io::get<std::string>(config, "base_model_type", (folder / "config.json").string());
  result.erase("base_model_type");
  result.erase("mask_config");
  return result;
}

Config Config::from_json(const json& json_config, const std::filesystem::path& folder) {
  const std::string file = (folder / "config.json").string();
  const std::string source = file + " (mask_config)";
  const auto mask_config = json_config.find("mask_config");
  if (mask_config == json_config.end() || !mask_config->is_object())
    throw data_error("{}: has no section mask_config", file);
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

}  // namespace vlmtrain::models::prs_med
