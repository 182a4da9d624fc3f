#include "models/network/mask/sam_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

namespace vlmtrain::models {

namespace {

struct SamRenaming {
  std::string_view own;
  std::string_view original;
};

/// Beginnings of names; the first that fits counts.
constexpr std::array kSamBeginnings{
    SamRenaming{"shared_image_embedding.positional_embedding",
                "prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"},
    SamRenaming{"mask_decoder.upscale_conv1.", "mask_decoder.output_upscaling.0."},
    SamRenaming{"mask_decoder.upscale_layer_norm.", "mask_decoder.output_upscaling.1."},
    SamRenaming{"mask_decoder.upscale_conv2.", "mask_decoder.output_upscaling.3."},
    SamRenaming{"mask_decoder.transformer.layer_norm_final_attn.", "mask_decoder.transformer.norm_final_attn."},
    SamRenaming{"vision_encoder.patch_embed.projection.", "image_encoder.patch_embed.proj."},
    SamRenaming{"vision_encoder.neck.conv1.", "image_encoder.neck.0."},
    SamRenaming{"vision_encoder.neck.layer_norm1.", "image_encoder.neck.1."},
    SamRenaming{"vision_encoder.neck.conv2.", "image_encoder.neck.2."},
    SamRenaming{"vision_encoder.neck.layer_norm2.", "image_encoder.neck.3."},
    SamRenaming{"vision_encoder.", "image_encoder."},
};

/// Below `mask_decoder.output_hypernetworks_mlps.N.`.
constexpr std::array kSamHypernetwork{
    SamRenaming{"proj_in.", "layers.0."},
    SamRenaming{"layers.0.", "layers.1."},
    SamRenaming{"proj_out.", "layers.2."},
};

template <size_t n>
std::string with_beginning(std::string_view name, const std::array<SamRenaming, n>& renamings) {
  for (const auto& [own, original] : renamings) {
    if (name.starts_with(own)) return fmt::format("{}{}", original, name.substr(own.size()));
  }
  return std::string(name);
}

struct NumberedName {
  std::string_view number;
  std::string_view rest;  ///< behind the dot
};

/// What stands behind `beginning`, if that is a number, a dot and more.
std::optional<NumberedName> behind(std::string_view name, std::string_view beginning) {
  if (!name.starts_with(beginning)) return std::nullopt;
  const std::string_view end = name.substr(beginning.size());
  const size_t dot = end.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  return NumberedName{.number = end.substr(0, dot), .rest = end.substr(dot + 1)};
}

/// layer_norm1 is norm1.
std::string with_short_norm(std::string_view name) {
  constexpr std::string_view kNorm = "layer_norm";
  return std::string(name.starts_with(kNorm) ? name.substr(kNorm.size() - std::string_view("norm").size()) : name);
}

}  // namespace

std::string original_sam_name(std::string_view own) {
  constexpr std::string_view kEncoderLayers = "vision_encoder.layers.";
  constexpr std::string_view kDecoderLayers = "mask_decoder.transformer.layers.";
  constexpr std::string_view kHypernetworks = "mask_decoder.output_hypernetworks_mlps.";
  if (const auto layer = behind(own, kEncoderLayers)) {
    // Layers of TinyViT are several blocks each.
    const bool is_tiny = layer->rest.starts_with("blocks.") || layer->rest.starts_with("downsample.");
    if (!is_tiny) return fmt::format("image_encoder.blocks.{}.{}", layer->number, with_short_norm(layer->rest));
  }
  if (const auto layer = behind(own, kDecoderLayers)) {
    return fmt::format("{}{}.{}", kDecoderLayers, layer->number, with_short_norm(layer->rest));
  }
  if (const auto mask = behind(own, kHypernetworks)) {
    return fmt::format("{}{}.{}", kHypernetworks, mask->number, with_beginning(mask->rest, kSamHypernetwork));
  }
  return with_beginning(own, kSamBeginnings);
}

}  // namespace vlmtrain::models
