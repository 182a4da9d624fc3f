#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/checkpoints/tensor_source.h"
#include "vlmtrain/io/lazy_tensors.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models {

/// How SAM's own checkpoints (`sam_vit_b_01ec64.pth`) and MobileSAM's (`mobile_sam.pt`) call the parameter that is
/// `name` below a mask model's scope. There it has transformers' name, with the encoder in `vision_encoder`; TinyViT's
/// parameters have the same name in both.
std::string to_original_sam_name(std::string_view name);

}  // namespace vlmtrain::models

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

/// A mask model that others have trained, whose encoder and decoder are taken over.
class MaskSource {
 public:
  /// Throws UserError (kBadData) where it is damaged, or in an unknown layout.
  explicit MaskSource(const std::filesystem::path& path);

  /// `preset`, a mask_config, with the sizes that this one has.
  nlohmann::ordered_json config(nlohmann::ordered_json preset) const;
  /// Throws UserError (kBadData) that lists what of `parameters` it has not, or of other shapes; logs what it has
  /// beside them and what does not run.
  void check(const std::vector<nn::Parameter>& parameters) const;
  /// A parameter's weight as it is stored, under the parameter's name; nothing for one that no mask model has.
  /// REQUIRES: check() has passed it.
  std::optional<io::LazyTensor> weight(const nn::Parameter& parameter) const;
  const std::filesystem::path& path() const { return tensors_.path(); }
  std::string_view layout() const { return get_layout_name(layout_); }

 private:
  /// What it calls a parameter; nothing for one that no mask model has.
  std::optional<std::string> find_stored_name(const nn::Parameter& parameter) const;

  TensorSource tensors_;
  MaskLayout layout_;
};

}  // namespace vlmtrain::models::prs_med
