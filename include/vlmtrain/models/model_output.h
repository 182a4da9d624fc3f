#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace vlmtrain::models {

/// What the vision side gives of some tiles or patches.
struct ImageFeatures {
  at::Tensor features{};  ///< [image tokens, hidden], in the order of the pixels; undefined without images
  /// What is added to the hidden states of the same tokens behind text block 0, 1 …: each [image tokens, hidden].
  std::vector<at::Tensor> deepstack_features{};
  /// On request, what enters the projector: [rows, the tower's width], a row a patch in the order of the pixels (and
  /// one for the class token where a family's projector takes it).
  at::Tensor dense{};

  /// Those of `count` image tokens from `first` on, without dense features.
  ImageFeatures narrow(int64_t first, int64_t count) const;
  /// All of them, one behind the other; parts without images are passed over.
  static ImageFeatures join(const std::vector<ImageFeatures>& parts);
};

/// What is wanted of a forward pass.
struct OutputRequest {
  at::Tensor positions;                ///< int64 [n]: rows whose hidden state behind the final norm is wanted
  std::vector<int64_t> text_blocks{};  ///< blocks of the language model behind which the states of all rows are wanted
  bool dense_features = false;         ///< ImageFeatures::dense
};

struct ModelOutput {
  at::Tensor hidden;                      ///< [n, hidden]
  std::vector<at::Tensor> text_blocks{};  ///< [tokens, hidden] for each that was asked for, before anything is added
  at::Tensor dense_features{};            ///< undefined unless asked for, and without images
};

}  // namespace vlmtrain::models
