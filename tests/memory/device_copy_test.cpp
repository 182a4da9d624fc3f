#include "vlmtrain/memory/device_copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace vlmtrain::memory {
namespace {

TEST(CopyToDeviceTest, CopiesValuesWithRequestedType) {
  const std::vector<int64_t> values{3, -1, int64_t{1} << 30};
  for (const auto type : {at::kInt, at::kLong}) {
    const at::Tensor copy = copy_to_device(values, at::kCPU, type);
    ASSERT_EQ(copy.scalar_type(), type);
    ASSERT_EQ(copy.sizes(), at::IntArrayRef{3});
    for (int64_t i = 0; i < copy.numel(); ++i) EXPECT_EQ(copy[i].item<int64_t>(), values[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(copy_to_device(std::vector<int64_t>{}, at::kCPU).numel(), 0);
}

TEST(CopyToDeviceTest, MetaTensorsKeepShape) {
  const at::Tensor copy = copy_to_device(std::vector<int64_t>{1, 2}, at::kMeta);
  EXPECT_TRUE(copy.is_meta());
  EXPECT_EQ(copy.scalar_type(), at::kLong);
  EXPECT_EQ(copy.numel(), 2);
}

}  // namespace
}  // namespace vlmtrain::memory
