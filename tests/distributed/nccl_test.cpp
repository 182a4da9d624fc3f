#include <dlfcn.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "distributed/backends.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/driver.h"

namespace vlmtrain::distributed {
namespace {

using testing::HasSubstr;

/// Loads PyTorch's NCCL process group, which reports that no GPU exists. Not tested with GPUs.
TEST(NcclTest, PluginLoadsAndRequiresGpu) {
  if (!memory::probe_driver().gpus.empty()) GTEST_SKIP() << "there is a GPU";
  ASSERT_NE(dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  try {
    make_nccl_backend(c10::make_intrusive<c10d::HashStore>(), /*rank=*/0, /*world_size=*/1, at::Device(at::kCUDA, 0));
    ADD_FAILURE() << "there is no GPU";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kFailed);
    EXPECT_THAT(error.what(), HasSubstr("rank 0 cannot connect to the other ranks by NCCL: "));
    EXPECT_THAT(error.what(), HasSubstr("no GPUs found"));
  }
}

}  // namespace
}  // namespace vlmtrain::distributed
