#include "models/network/mask/sam_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

namespace vlmtrain::models {

namespace {

struct SamRenaming {
  std::string_view name;
  std::string_view original;
};

/// Beginnings of names; the first that fits counts.
constexpr std::array kSamPrefixes{
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
std::string replace_prefix(std::string_view text, const std::array<SamRenaming, n>& mapping) {
  for (const auto& [from, to] : mapping) {
    if (text.starts_with(from)) return fmt::format("{}{}", to, text.substr(from.size()));
  }
  return std::string(text);
}

struct NumberedName {
  std::string_view number;
  std::string_view suffix;  ///< behind the dot
};

/// What stands behind `prefix`, if that is a number, a dot and more.
std::optional<NumberedName> parse_numbered_name(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const std::string_view remainder = name.substr(prefix.size());
  const size_t dot = remainder.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  return NumberedName{.number = remainder.substr(0, dot), .suffix = remainder.substr(dot + 1)};
}

/// layer_norm1 is norm1.
std::string shorten_norm_name(std::string_view name) {
  constexpr std::string_view kNorm = "layer_norm";
  return std::string(name.starts_with(kNorm) ? name.substr(kNorm.size() - std::string_view("norm").size()) : name);
}

}  // namespace

std::string to_original_sam_name(std::string_view name) {
  constexpr std::string_view kEncoderLayers = "vision_encoder.layers.";
  constexpr std::string_view kDecoderLayers = "mask_decoder.transformer.layers.";
  constexpr std::string_view kHypernetworks = "mask_decoder.output_hypernetworks_mlps.";
  if (const auto layer = parse_numbered_name(name, kEncoderLayers)) {
    // Layers of TinyViT are several blocks each.
    const bool is_tiny_vit = layer->suffix.starts_with("blocks.") || layer->suffix.starts_with("downsample.");
    if (!is_tiny_vit) return fmt::format("image_encoder.blocks.{}.{}", layer->number, shorten_norm_name(layer->suffix));
  }
  if (const auto layer = parse_numbered_name(name, kDecoderLayers)) {
    return fmt::format("{}{}.{}", kDecoderLayers, layer->number, shorten_norm_name(layer->suffix));
  }
  if (const auto mask = parse_numbered_name(name, kHypernetworks)) {
    return fmt::format("{}{}.{}", kHypernetworks, mask->number, replace_prefix(mask->suffix, kSamHypernetwork));
  }
  return replace_prefix(name, kSamPrefixes);
}

}  // namespace vlmtrain::models
