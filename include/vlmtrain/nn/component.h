#pragma once

namespace vlmtrain::nn {

/// The part of a vision-language model that a parameter belongs to: what freezing and learning rates are chosen by.
enum class Component {
  kVisionTower,
  kProjector,
  kLanguageModel,
  kUnused,  ///< in the checkpoint, but no forward pass runs it (CLIP's last block in LLaVA): kept as it is, never
            ///< trained
};

}  // namespace vlmtrain::nn
