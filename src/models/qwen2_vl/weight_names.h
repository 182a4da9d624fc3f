#pragma once

#include <span>
#include <string>

namespace vlmtrain::models::qwen2_vl {

/// How a checkpoint spells the parameters' names: as published (`visual.blocks…`, `model.layers…`) or as transformers
/// 5's modules, which are vlmtrain's (`model.visual.blocks…`, `model.language_model.layers…`).
class QwenKeyMap {
 public:
  /// The spelling of a checkpoint with these tensors; the published one where there are none.
  static QwenKeyMap detect(std::span<const std::string> tensors);

  std::string to_checkpoint_key(const std::string& parameter) const;

 private:
  bool is_published_ = true;
};

}  // namespace vlmtrain::models::qwen2_vl
