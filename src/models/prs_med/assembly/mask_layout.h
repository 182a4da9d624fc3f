#pragma once

#include <string>
#include <string_view>

#include "models/checkpoints/tensor_source.h"

namespace vlmtrain::models::prs_med {

/// Who wrote a mask model: that decides names, and where its sizes stand.
enum class MaskLayout {
  kTransformers,  ///< SamModel, with a config.json
  kSam,           ///< SAM's own code: sam_vit_b_01ec64.pth
  kMobileSam,     ///< MobileSAM's: mobile_sam.pt
};

/// Told by the names of its tensors. Throws UserError (kBadData) that names the known ones.
MaskLayout detect_layout(const TensorSource& tensors);

std::string_view get_layout_name(MaskLayout layout);

/// How it spells the parameter that is `parameter` below `mask_model`.
std::string to_checkpoint_key(MaskLayout layout, const std::string& parameter);

/// Whether a mask model has the tensor for what does not run here: prompts of points and boxes, scores of masks, the
/// choice between several, a classifier, tables that are computed.
bool is_unused(std::string_view name);

}  // namespace vlmtrain::models::prs_med
