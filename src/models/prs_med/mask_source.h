#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/checkpoints/tensor_source.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models {

/// Returns the name of the parameter `name` (relative to a mask model's scope) in SAM's own
/// checkpoints (`sam_vit_b_01ec64.pth`) and MobileSAM's (`mobile_sam.pt`). `name` is transformers'
/// name, with the encoder in `vision_encoder`; TinyViT's parameters have the same name in both.
std::string to_original_sam_name(std::string_view name);

}  // namespace vlmtrain::models

namespace vlmtrain::models::prs_med {

/// Author of a mask model: decides tensor names and the source of its sizes.
enum class MaskLayout {
  kTransformers,  ///< SamModel, with a config.json
  kSam,           ///< SAM's own code: sam_vit_b_01ec64.pth
  kMobileSam,     ///< MobileSAM's: mobile_sam.pt
};

/// Returns the layout of a mask model from its tensor names. Throws UserError (kBadData) that lists
/// the known layouts.
MaskLayout detect_layout(const TensorSource& tensors);

std::string_view get_layout_name(MaskLayout layout);

/// Returns the checkpoint key of the parameter `parameter`, relative to `mask_model`.
std::string to_checkpoint_key(MaskLayout layout, const std::string& parameter);

/// Returns true for a tensor of an unused part: prompts of points and boxes, scores of masks, the
/// choice among several masks, a classifier, computed tables.
bool is_unused(std::string_view name);

/// Pretrained mask model whose encoder and decoder are taken over.
class MaskSource {
 public:
  /// Opens the model. Throws UserError (kBadData) for damaged files and unknown layouts.
  explicit MaskSource(const std::filesystem::path& path);

  /// Returns `preset`, a mask_config, with the sizes of this mask model.
  nlohmann::ordered_json config(nlohmann::ordered_json preset) const;
  /// Throws UserError (kBadData) that lists missing `parameters` and those of other shapes; logs
  /// surplus and unused tensors.
  void check(const std::vector<nn::Parameter>& parameters) const;
  /// Returns a parameter's stored weight under the parameter's name; nothing for a parameter that
  /// no mask model has. REQUIRES: check() has passed it.
  std::optional<io::LazyTensor> weight(const nn::Parameter& parameter) const;
  const std::filesystem::path& path() const { return tensors_.path(); }
  std::string_view layout() const { return get_layout_name(layout_); }

 private:
  /// Returns the tensor name of a parameter; nothing for a parameter that no mask model has.
  std::optional<std::string> find_stored_name(const nn::Parameter& parameter) const;

  TensorSource tensors_;
  MaskLayout layout_;
};

}  // namespace vlmtrain::models::prs_med
