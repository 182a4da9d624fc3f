#include "models/brain_llava/pooling.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/div.h>

#include <string_view>

#include "vlmtrain/base/error.h"

namespace vlmtrain::models::brain_llava {

namespace {

/// [tokens, patches] of one axis. Made where the features are: nothing is copied to the device.
at::Tensor means_along(int64_t tokens, int64_t patches, const at::TensorOptions& options) {
  constexpr std::string_view kDown = "floor";
  const auto whole = options.dtype(at::kLong);
  const at::Tensor token = at::arange(tokens, whole).unsqueeze(1), patch = at::arange(patches, whole);
  const at::Tensor first = at::div(token * patches, tokens, kDown);
  const at::Tensor end = at::div((token + 1) * patches + (tokens - 1), tokens, kDown);
  return patch.ge(first).to(at::kFloat) * patch.lt(end).to(at::kFloat) / (end - first);
}

}  // namespace

at::Tensor pooling_matrix(const VolumeAxes& tokens, const VolumeAxes& patches, const at::TensorOptions& options) {
  const auto along = [&](size_t axis) { return means_along(tokens[axis], patches[axis], options); };
  const at::Tensor x = along(0).view({tokens[0], 1, 1, patches[0], 1, 1});
  const at::Tensor y = along(1).view({tokens[1], 1, 1, patches[1], 1});
  const at::Tensor z = along(2).view({tokens[2], 1, 1, patches[2]});
  return (x * y * z).flatten(3, 5).flatten(0, 2).to(options.dtype());
}

at::Tensor pool(const at::Tensor& features, const VolumeAxes& tokens, const VolumeAxes& patches) {
  const int64_t length = patches[0] * patches[1] * patches[2];
  VLMTRAIN_CHECK(features.size(0) % length == 0, "{} features of volumes of {} patches", features.size(0), length);
  const at::Tensor volumes = features.view({-1, length, features.size(1)});
  const at::Tensor means = pooling_matrix(tokens, patches, features.options());
  return at::bmm(means.expand({volumes.size(0), -1, -1}), volumes).flatten(0, 1);
}

}  // namespace vlmtrain::models::brain_llava
