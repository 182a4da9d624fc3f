#pragma once

namespace vlmtrain::engine {

/// The parts of a loss over words and masks, each as it is divided by its own normaliser and before its weight.
struct MaskLosses {
  double text = 0;  ///< mean cross-entropy of the label tokens
  double bce = 0;   ///< mean binary cross-entropy of the masks' pixels
  double dice = 0;  ///< mean Dice loss of the masks
};

/// How much the parts of the loss of a model that draws masks count.
struct MaskLossWeights {
  double text = 1.0;  ///< cross-entropy of the label tokens
  double bce = 2.0;   ///< binary cross-entropy of the masks' pixels
  double dice = 0.5;  ///< Dice loss of the masks

  bool operator==(const MaskLossWeights&) const = default;
};

}  // namespace vlmtrain::engine
