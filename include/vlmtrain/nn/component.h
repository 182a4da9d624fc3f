#pragma once

namespace vlmtrain::nn {

/// The part of a vision-language model that a parameter belongs to: what freezing and learning rates are chosen by.
enum class Component {
  kVisionTower,
  kProjector,
  kLanguageModel,
  kMaskEncoder,  ///< of pictures in which masks are drawn
  kMaskDecoder,  ///< what makes masks of its features and of the language model's hidden states
  kConstant,     ///< read by forward passes and never trained: the statistics of a batch norm
  kUnused,       ///< in the checkpoint, but no forward pass runs it (CLIP's last block in LLaVA): kept as it is, never
                 ///< trained
};

constexpr bool is_trainable(Component component) {
  return component != Component::kConstant && component != Component::kUnused;
}

}  // namespace vlmtrain::nn
