#include "vlmtrain/models/model_output.h"

#include <ATen/ops/cat.h>

#include <algorithm>

namespace vlmtrain::models {

namespace {

template <class TensorOf>
at::Tensor joined(const std::vector<ImageFeatures>& parts, const TensorOf& tensor_of) {
  std::vector<at::Tensor> tensors;
  for (const auto& part : parts) {
    if (part.features.defined() && tensor_of(part).defined()) tensors.push_back(tensor_of(part));
  }
  return tensors.empty() ? at::Tensor() : at::cat(tensors);
}

}  // namespace

ImageFeatures ImageFeatures::narrow(int64_t first, int64_t count) const {
  ImageFeatures part{.features = features.narrow(0, first, count)};
  for (const auto& added : behind_text_blocks) part.behind_text_blocks.push_back(added.narrow(0, first, count));
  return part;
}

ImageFeatures ImageFeatures::join(const std::vector<ImageFeatures>& parts) {
  ImageFeatures all{.features = joined(parts, [](const auto& part) { return part.features; }),
                    .dense = joined(parts, [](const auto& part) { return part.dense; })};
  size_t additions = 0;
  for (const auto& part : parts) additions = std::max(additions, part.behind_text_blocks.size());
  for (size_t block = 0; block < additions; ++block) {
    all.behind_text_blocks.push_back(
        joined(parts, [block](const auto& part) { return part.behind_text_blocks.at(block); }));
  }
  return all;
}

}  // namespace vlmtrain::models
