#include "models/prs_med/mask_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "models/checkpoints/load_weights.h"
#include "models/prs_med/mask_sizes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"

namespace vlmtrain::models {

namespace {

/// Prefix of a name in transformers' SamModel, and the prefix in SAM's code that replaces it.
struct SamPrefixRenaming {
  std::string_view transformers_prefix;
  std::string_view original_prefix;
};

/// Renamings of tensor names; the first match applies.
constexpr std::array kSamPrefixRenamings{
    SamPrefixRenaming{"shared_image_embedding.positional_embedding",
                      "prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"},
    SamPrefixRenaming{"mask_decoder.upscale_conv1.", "mask_decoder.output_upscaling.0."},
    SamPrefixRenaming{"mask_decoder.upscale_layer_norm.", "mask_decoder.output_upscaling.1."},
    SamPrefixRenaming{"mask_decoder.upscale_conv2.", "mask_decoder.output_upscaling.3."},
    SamPrefixRenaming{"mask_decoder.transformer.layer_norm_final_attn.", "mask_decoder.transformer.norm_final_attn."},
    SamPrefixRenaming{"vision_encoder.patch_embed.projection.", "image_encoder.patch_embed.proj."},
    SamPrefixRenaming{"vision_encoder.neck.conv1.", "image_encoder.neck.0."},
    SamPrefixRenaming{"vision_encoder.neck.layer_norm1.", "image_encoder.neck.1."},
    SamPrefixRenaming{"vision_encoder.neck.conv2.", "image_encoder.neck.2."},
    SamPrefixRenaming{"vision_encoder.neck.layer_norm2.", "image_encoder.neck.3."},
    SamPrefixRenaming{"vision_encoder.", "image_encoder."},
};

/// Renamings of names after `mask_decoder.output_hypernetworks_mlps.N.`.
constexpr std::array kSamHypernetworkRenamings{
    SamPrefixRenaming{"proj_in.", "layers.0."},
    SamPrefixRenaming{"layers.0.", "layers.1."},
    SamPrefixRenaming{"proj_out.", "layers.2."},
};

template <size_t n>
std::string replace_prefix(std::string_view text, const std::array<SamPrefixRenaming, n>& renamings) {
  for (const auto& [from, to] : renamings) {
    if (text.starts_with(from)) return fmt::format("{}{}", to, text.substr(from.size()));
  }
  return std::string(text);
}

/// Parts of a name such as `prefix` 3 `.weight`.
struct NumberedName {
  std::string_view number;
  std::string_view suffix;  ///< after the dot
};

/// Returns the number after `prefix` and the rest of the name; nothing if `name` has another form.
std::optional<NumberedName> parse_numbered_name(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const std::string_view remainder = name.substr(prefix.size());
  const size_t dot = remainder.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  return NumberedName{.number = remainder.substr(0, dot), .suffix = remainder.substr(dot + 1)};
}

/// Replaces the prefix layer_norm by norm: layer_norm1 → norm1.
std::string shorten_norm_name(std::string_view name) {
  constexpr std::string_view kLayerNormPrefix = "layer_norm";
  return std::string(name.starts_with(kLayerNormPrefix)
                         ? name.substr(kLayerNormPrefix.size() - std::string_view("norm").size())
                         : name);
}

}  // namespace

std::string to_original_sam_name(std::string_view name) {
  constexpr std::string_view kEncoderLayersPrefix = "vision_encoder.layers.";
  constexpr std::string_view kDecoderLayersPrefix = "mask_decoder.transformer.layers.";
  constexpr std::string_view kHypernetworksPrefix = "mask_decoder.output_hypernetworks_mlps.";
  if (const auto layer = parse_numbered_name(name, kEncoderLayersPrefix)) {
    // A layer of TinyViT contains blocks and a downsampling layer; these names are equal in both.
    const bool is_tiny_vit = layer->suffix.starts_with("blocks.") || layer->suffix.starts_with("downsample.");
    if (!is_tiny_vit) return fmt::format("image_encoder.blocks.{}.{}", layer->number, shorten_norm_name(layer->suffix));
  }
  if (const auto layer = parse_numbered_name(name, kDecoderLayersPrefix)) {
    return fmt::format("{}{}.{}", kDecoderLayersPrefix, layer->number, shorten_norm_name(layer->suffix));
  }
  if (const auto mask = parse_numbered_name(name, kHypernetworksPrefix)) {
    return fmt::format("{}{}.{}", kHypernetworksPrefix, mask->number,
                       replace_prefix(mask->suffix, kSamHypernetworkRenamings));
  }
  return replace_prefix(name, kSamPrefixRenamings);
}

}  // namespace vlmtrain::models

namespace vlmtrain::models::prs_med {

namespace {

// Modules of SamModel, SAM and MobileSAM without a counterpart in PRS-Med's model.
constexpr std::array<std::string_view, 10> kUnusedModulePrefixes{"mask_decoder.iou_prediction_head.",
                                                                 "mask_decoder.output_hypernetworks_mlps.",
                                                                 "prompt_encoder.point_embeddings.",
                                                                 "prompt_encoder.not_a_point_embed.",
                                                                 "prompt_encoder.mask_downscaling.",
                                                                 "image_encoder.norm_head.",
                                                                 "image_encoder.head.",
                                                                 "prompt_encoder.point_embed.",
                                                                 "prompt_encoder.mask_embed.",
                                                                 "prompt_encoder.shared_embedding."};

// Suffixes of computed buffers: BatchNorm's counter and TinyViT's attention indices.
constexpr std::array<std::string_view, 2> kUnusedBufferSuffixes{".num_batches_tracked", ".attention_bias_idxs"};

constexpr std::string_view kMaskModelPrefix = "mask_model.";

TensorSourceErrorMessages make_mask_source_messages() {
  return {.not_found_message =
              "is not a mask model; give a folder with transformers' SamModel, or a .pt, .pth or .safetensors file of "
              "SAM or MobileSAM",
          .choose_file_hint = "give the file of SAM or MobileSAM itself"};
}

}  // namespace

MaskCheckpointFormat detect_format(const TensorSource& tensors) {
  if (tensors.has_prefix("vision_encoder.")) return MaskCheckpointFormat::kTransformers;
  if (tensors.has_prefix("image_encoder.blocks.")) return MaskCheckpointFormat::kSam;
  if (tensors.has_prefix("image_encoder.layers.")) return MaskCheckpointFormat::kMobileSam;
  throw data_error(
      "{}: is a mask model in an unknown layout{}; supported layouts have tensors vision_encoder.… (SamModel of "
      "transformers), image_encoder.blocks.… (SAM) or image_encoder.layers.… (MobileSAM)",
      tensors.path().string(),
      tensors.all().empty() ? "" : fmt::format(" (it has, for example, {})", tensors.all().begin()->first));
}

std::string_view get_format_name(MaskCheckpointFormat format) {
  switch (format) {
    case MaskCheckpointFormat::kTransformers:
      return "SamModel of transformers";
    case MaskCheckpointFormat::kSam:
      return "SAM";
    case MaskCheckpointFormat::kMobileSam:
      return "MobileSAM";
  }
  throw InternalError("unknown layout of a mask model");
}

std::string to_checkpoint_key(MaskCheckpointFormat format, const std::string& parameter) {
  return format == MaskCheckpointFormat::kTransformers ? parameter : to_original_sam_name(parameter);
}

bool is_unused_tensor(std::string_view name) {
  return std::ranges::any_of(kUnusedModulePrefixes, [name](auto module) { return name.starts_with(module); }) ||
         std::ranges::any_of(kUnusedBufferSuffixes, [name](auto table) { return name.ends_with(table); });
}

MaskSource::MaskSource(const std::filesystem::path& path)
    : tensors_(path, make_mask_source_messages()), format_(detect_format(tensors_)) {}

nlohmann::ordered_json MaskSource::make_mask_config(nlohmann::ordered_json preset) const {
  preset.update(read_mask_sizes(tensors_, format_, preset.value("image_size", int64_t{1024})));
  return preset;
}

std::optional<std::string> MaskSource::find_stored_tensor_name(const nn::Parameter& parameter) const {
  if (!parameter.name.starts_with(kMaskModelPrefix)) return std::nullopt;
  return to_checkpoint_key(format_, parameter.name.substr(kMaskModelPrefix.size()));
}

void MaskSource::check_weights(const std::vector<nn::Parameter>& parameters) const {
  std::vector<std::string> problems;
  std::set<std::string> expected;
  for (nn::Parameter parameter : parameters) {
    const auto name = find_stored_tensor_name(parameter);
    if (!name) continue;
    expected.insert(*name);
    parameter.name = *name;  // error messages name the stored tensor
    const StoredTensor* const tensor = tensors_.find(*name);
    if (tensor == nullptr) {
      problems.push_back("missing: " + *name);
      continue;
    }
    for (std::string problem :
         {describe_unsupported_dtype(*name, tensor->dtype), describe_shape_mismatch(parameter, tensor->shape)}) {
      if (!problem.empty()) problems.push_back(std::move(problem));
    }
  }
  throw_if_problems(fmt::format("{}: is an incomplete mask model in the layout of {}; download it again",
                                tensors_.path().string(), format()),
                    problems);
  std::vector<std::string> unexpected_names;
  for (const auto& [name, tensor] : tensors_.all()) {
    if (!expected.contains(name) && !is_unused_tensor(name)) unexpected_names.push_back(name);
  }
  if (unexpected_names.empty()) return;
  const size_t count = unexpected_names.size();
  spdlog::warn("{}: {} tensors are not part of a mask model and are skipped: {}", tensors_.path().string(), count,
               fmt::join(truncate_list(std::move(unexpected_names)), ", "));
}

std::optional<io::LazyTensor> MaskSource::find_weight(const nn::Parameter& parameter) const {
  const auto name = find_stored_tensor_name(parameter);
  if (!name) return std::nullopt;
  const StoredTensor* const tensor = tensors_.find(*name);
  VLMTRAIN_CHECK(tensor != nullptr, "{} has no {}", tensors_.path().string(), *name);
  return io::LazyTensor{.name = parameter.name,
                        .dtype = tensor->dtype,
                        .shape = tensor->shape,
                        .materialize = tensor->read,
                        .on_written = tensor->release};
}

}  // namespace vlmtrain::models::prs_med
