#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/checkpoints/tensor_source.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::nn {
struct Parameter;  // nn/weights/parameters.h
}  // namespace vlmtrain::nn

namespace vlmtrain::models {

/// Returns the name of a parameter in the checkpoints of SAM (`sam_vit_b_01ec64.pth`) and MobileSAM
/// (`mobile_sam.pt`). `name` is its name in transformers' SamModel, such as
/// `vision_encoder.pos_embed`. Names within TinyViT, which SamModel does not have, are those of
/// MobileSAM after `vision_encoder.`.
std::string to_original_sam_name(std::string_view name);

}  // namespace vlmtrain::models

namespace vlmtrain::models::prs_med {

/// Format of a mask model's checkpoint, which determines tensor names and the source of its sizes.
enum class MaskCheckpointFormat {
  kTransformers,  ///< transformers' SamModel, with a config.json
  kSam,           ///< SAM's original code: sam_vit_b_01ec64.pth
  kMobileSam,     ///< MobileSAM's code: mobile_sam.pt
};

/// Detects the format of a mask model from its tensor names. Throws UserError (kBadData) with a
/// list of the supported formats.
MaskCheckpointFormat detect_format(const TensorSource& tensors);

/// Returns the name of a format in messages.
std::string_view get_format_name(MaskCheckpointFormat format);

/// Returns the checkpoint key of a parameter. `parameter` is its name after `mask_model.`.
std::string to_checkpoint_key(MaskCheckpointFormat format, const std::string& parameter);

/// Returns true for a tensor of a part that PRS-Med does not use: point and box prompts, mask
/// scores, the choice among several masks, a classifier, computed buffers. `name` is the name in
/// the checkpoint.
bool is_unused_tensor(std::string_view name);

/// Pretrained mask model whose encoder and decoder `init --mask-model` copies.
class MaskSource {
 public:
  /// Opens the model at `path`, a file or folder. Throws UserError (kBadData) for damaged files and
  /// unknown formats.
  explicit MaskSource(const std::filesystem::path& path);

  /// Returns `preset`, a mask_config, with its sizes replaced by those of this mask model. Throws
  /// as read_mask_sizes().
  nlohmann::ordered_json make_mask_config(nlohmann::ordered_json preset) const;
  /// Compares the tensors with `parameters`, the parameters of the new model; ignores those outside
  /// of the mask model. Throws UserError (kBadData) with a list of missing tensors and of
  /// unsupported dtypes and shapes. Logs tensors that are neither used nor is_unused_tensor().
  void check_weights(const std::vector<nn::Parameter>& parameters) const;
  /// Returns the stored weight for `parameter`, in the stored dtype and under the parameter's name;
  /// nothing for parameters that no mask model has. The tensor is read when it is materialized,
  /// also after this object is destroyed. REQUIRES: check_weights() has accepted the parameter.
  std::optional<io::LazyTensor> find_weight(const nn::Parameter& parameter) const;
  const std::filesystem::path& path() const { return tensors_.path(); }
  /// Returns the name of the format in messages.
  std::string_view format() const { return get_format_name(format_); }

 private:
  /// Returns the stored tensor's name; nothing for parameters that no mask model has.
  std::optional<std::string> find_stored_tensor_name(const nn::Parameter& parameter) const;

  TensorSource tensors_;
  MaskCheckpointFormat format_;
};

}  // namespace vlmtrain::models::prs_med
