#include "models/prs_med/assembly/mask_layout.h"

#include <algorithm>
#include <array>

#include "models/network/mask/sam_names.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::prs_med {

namespace {

constexpr std::array<std::string_view, 10> kUnusedModules{"mask_decoder.iou_prediction_head.",
                                                          "mask_decoder.output_hypernetworks_mlps.",
                                                          "prompt_encoder.point_embeddings.",
                                                          "prompt_encoder.not_a_point_embed.",
                                                          "prompt_encoder.mask_downscaling.",
                                                          "image_encoder.norm_head.",
                                                          "image_encoder.head.",
                                                          "prompt_encoder.point_embed.",
                                                          "prompt_encoder.mask_embed.",
                                                          "prompt_encoder.shared_embedding."};

constexpr std::array<std::string_view, 2> kUnusedTables{".num_batches_tracked", ".attention_bias_idxs"};

}  // namespace

MaskLayout detect_layout(const TensorSource& tensors) {
  if (tensors.has_prefix("vision_encoder.")) return MaskLayout::kTransformers;
  if (tensors.has_prefix("image_encoder.blocks.")) return MaskLayout::kSam;
  if (tensors.has_prefix("image_encoder.layers.")) return MaskLayout::kMobileSam;
  throw data_error(
      "{}: is a mask model in no known layout{}; the known ones have tensors vision_encoder.… (SamModel of "
      "transformers), "
      "image_encoder.blocks.… (SAM) or image_encoder.layers.… (MobileSAM)",
      tensors.path().string(),
      tensors.all().empty() ? "" : fmt::format(" (it has {}, say)", tensors.all().begin()->first));
}

std::string_view get_layout_name(MaskLayout layout) {
  switch (layout) {
    case MaskLayout::kTransformers:
      return "SamModel of transformers";
    case MaskLayout::kSam:
      return "SAM";
    case MaskLayout::kMobileSam:
      return "MobileSAM";
  }
  throw InternalError("unknown layout of a mask model");
}

std::string to_checkpoint_key(MaskLayout layout, const std::string& parameter) {
  return layout == MaskLayout::kTransformers ? parameter : to_original_sam_name(parameter);
}

bool is_unused(std::string_view name) {
  return std::ranges::any_of(kUnusedModules, [name](auto module) { return name.starts_with(module); }) ||
         std::ranges::any_of(kUnusedTables, [name](auto table) { return name.ends_with(table); });
}

}  // namespace vlmtrain::models::prs_med
