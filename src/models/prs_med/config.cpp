#include "models/prs_med/config.h"

#include "models/checkpoints/size_limits.h"
#include "models/llava/config.h"
#include "models/network/mask/mask_encoder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::prs_med {

namespace {

using nlohmann::json;

std::variant<TinyVitConfig, SamVitConfig> read_encoder(const json& encoder, int64_t image_size,
                                                       const std::string& source) {
  const auto type = io::get<std::string>(encoder, "model_type", source);
  json sized = encoder;
  sized["image_size"] = image_size;
  if (type == "tiny_vit") return TinyVitConfig::from_json(sized, source);
  if (type == "sam_vision_model") return SamVitConfig::from_json(sized, source);
  throw data_error("{}: mask encoder {} is not supported; tiny_vit and sam_vision_model are", source, type);
}

int64_t output_channels(const std::variant<TinyVitConfig, SamVitConfig>& encoder) {
  const auto* tiny = std::get_if<TinyVitConfig>(&encoder);
  return tiny != nullptr ? tiny->out_channels : std::get<SamVitConfig>(encoder).output_channels;
}

}  // namespace

json llava_json(const json& config, const std::filesystem::path& folder) {
  json own = config;
  own["model_type"] = io::get<std::string>(config, "base_model_type", (folder / "config.json").string());
  own.erase("base_model_type");
  own.erase("mask_config");
  return own;
}

Config Config::from_json(const json& json_config, const std::filesystem::path& folder) {
  const std::string file = (folder / "config.json").string();
  const std::string source = file + " (mask_config)";
  const auto masks = json_config.find("mask_config");
  if (masks == json_config.end() || !masks->is_object()) throw data_error("{}: has no section mask_config", file);
  Config config;
  config.llava = llava_json(json_config, folder);
  config.text_hidden_size = llava::Config::from_json(config.llava, folder).text.hidden_size;
  config.image_size = size_of(*masks, "image_size", config.image_size, kLargestSide, source);
  config.mask_token = io::get_or<std::string>(*masks, "mask_token", config.mask_token, source);
  config.encoder = read_encoder(masks->value("vision_encoder", json{{"model_type", "tiny_vit"}}), config.image_size,
                                source + ", vision_encoder");
  config.decoder =
      MaskDecoderConfig::from_json(masks->value("mask_decoder", json::object()), source + ", mask_decoder");
  if (output_channels(config.encoder) != config.channels()) {
    throw data_error("{}: the encoder gives {} channels and the decoder takes {}; they must be equal", source,
                     output_channels(config.encoder), config.channels());
  }
  config.side(config.image_size);
  return config;
}

int64_t Config::channels() const {
  return decoder.hidden_size();
}

int64_t Config::side(std::optional<int64_t> wanted) const {
  const int64_t side = wanted.value_or(image_size);
  if (side % MaskEncoder::kStride != 0) {
    throw usage_error("data.mask_image_size: is {}, and a mask encoder takes multiples of {}", side,
                      MaskEncoder::kStride);
  }
  if (side != image_size && std::holds_alternative<SamVitConfig>(encoder)) {
    throw usage_error(
        "data.mask_image_size: is {}, and SAM's encoder has positions for {} (image_size in config.json) alone; leave "
        "it auto",
        side, image_size);
  }
  return side;
}

}  // namespace vlmtrain::models::prs_med
