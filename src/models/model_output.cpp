#include "vlmtrain/models/model_output.h"

#include <ATen/ops/cat.h>

#include <algorithm>

namespace vlmtrain::models {

namespace {

template <class GetTensor>
at::Tensor concat_tensors(const std::vector<ImageFeatures>& parts, const GetTensor& get_tensor) {
  std::vector<at::Tensor> tensors;
  for (const auto& part : parts) {
    if (part.features.defined() && get_tensor(part).defined()) tensors.push_back(get_tensor(part));
  }
  return tensors.empty() ? at::Tensor() : at::cat(tensors);
}

}  // namespace

ImageFeatures ImageFeatures::narrow(int64_t first, int64_t count) const {
  ImageFeatures part{.features = features.narrow(0, first, count)};
  for (const auto& deepstack : deepstack_features) part.deepstack_features.push_back(deepstack.narrow(0, first, count));
  return part;
}

ImageFeatures ImageFeatures::join(const std::vector<ImageFeatures>& parts) {
  ImageFeatures result{.features = concat_tensors(parts, [](const auto& part) { return part.features; }),
                       .dense = concat_tensors(parts, [](const auto& part) { return part.dense; })};
  size_t num_deepstack = 0;
  for (const auto& part : parts) num_deepstack = std::max(num_deepstack, part.deepstack_features.size());
  for (size_t block = 0; block < num_deepstack; ++block) {
    result.deepstack_features.push_back(
        concat_tensors(parts, [block](const auto& part) { return part.deepstack_features.at(block); }));
  }
  return result;
}

}  // namespace vlmtrain::models
