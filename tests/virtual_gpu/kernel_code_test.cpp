#include <dlfcn.h>

#include <ATen/Context.h>
#include <ATen/ops/ones.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/driver.h"

namespace vlmtrain {
namespace {

/// ctest also runs it on architectures that the GPU table lacks.
TEST(KernelCodeOnGpuTest, MatchesLibTorch) {
  ASSERT_NE(dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  at::globalContext().lazyInitDevice(at::kCUDA);
  const int architecture = memory::get_architecture(at::Device(at::kCUDA, 0));
  bool runs = true;
  try {
    at::ones({1}, at::TensorOptions(at::kFloat).device(at::kCUDA));
  } catch (const c10::Error&) {
    runs = false;
  }
  EXPECT_EQ(runs, memory::has_kernel_code(architecture)) << "sm_" << architecture;
}

}  // namespace
}  // namespace vlmtrain
