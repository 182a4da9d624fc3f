#pragma once

namespace vlmtrain::nn {

/// The part of a vision-language model that a parameter belongs to: what freezing and learning rates are chosen by.
enum class Component { kVisionTower, kProjector, kLanguageModel };

}  // namespace vlmtrain::nn
