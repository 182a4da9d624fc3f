#include <ATen/ops/adaptive_avg_pool3d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "models/brain_llava/family.h"
#include "parity/deviations.h"

namespace vlmtrain::models::brain_llava {
namespace {

TEST(VolumePooling, MatchesAdaptiveAveragePooling) {
  for (const VolumeShape& patches : {VolumeShape{4, 4, 4}, VolumeShape{6, 6, 6}, VolumeShape{7, 5, 8}}) {
    const at::Tensor features = at::randn({2 * patches[0] * patches[1] * patches[2], 3});
    const at::Tensor volumes =
        features.view({2, patches[0], patches[1], patches[2], 3}).permute({0, 4, 1, 2, 3}).contiguous();
    const at::Tensor expected = at::adaptive_avg_pool3d(volumes, {4, 3, 2}).permute({0, 2, 3, 4, 1}).reshape({-1, 3});
    EXPECT_LT(parity::relative_difference(pool_patches(features, {4, 3, 2}, patches), expected), 1e-6);
  }
}

/// Plans of host memory run the step on the meta device.
TEST(VolumePooling, RunsOnTheMetaDevice) {
  const at::Tensor features = at::empty({2 * 6 * 6 * 6, 3}, at::TensorOptions().device(at::kMeta));
  EXPECT_EQ(pool_patches(features, {3, 3, 3}, {6, 6, 6}).sizes(), (std::vector<int64_t>{2 * 27, 3}));
}

}  // namespace
}  // namespace vlmtrain::models::brain_llava
