#include "vlmtrain/memory/host_arena.h"

#include <gtest/gtest.h>

namespace vlmtrain::memory {
namespace {

TEST(HostArena, OtherDevicesHaveOrdinaryMemory) {
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
    HostArena arena(device);
    const at::Tensor tensor = arena.allocate({3, 5}, at::kFloat, "test");
    EXPECT_EQ(tensor.device(), device);
    EXPECT_EQ(tensor.sizes(), at::IntArrayRef({3, 5}));
    EXPECT_TRUE(arena.view_on_device(tensor).is_same(tensor));
    arena.allocate({2}, at::kBFloat16, "test");
    EXPECT_EQ(arena.bytes(), 3 * 5 * 4 + 2 * 2);
  }
}

}  // namespace
}  // namespace vlmtrain::memory
