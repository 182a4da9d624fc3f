#pragma once

#include <string>
#include <string_view>

namespace vlmtrain::models {

/// How SAM's own checkpoints (`sam_vit_b_01ec64.pth`) and MobileSAM's (`mobile_sam.pt`) call the parameter that is
/// `name` below a mask model's scope. There it has transformers' name, with the encoder in `vision_encoder`; TinyViT's
/// parameters have the same name in both.
std::string to_original_sam_name(std::string_view name);

}  // namespace vlmtrain::models
