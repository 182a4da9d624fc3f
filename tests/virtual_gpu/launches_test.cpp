#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "virtual_gpu/cuda_call.h"
#include "virtual_gpu/virtual_gpu.h"

namespace vlmtrain {
namespace {

struct Size {
  unsigned x = 1, y = 1, z = 1;
};

/// A fat binary of one architecture without code.
class DeviceCode {
 public:
  enum Kind : uint16_t { kPtx = 1, kMachineCode = 2 };

  DeviceCode(Kind kind, uint32_t architecture) {
    content_.entry.kind = kind;
    content_.entry.architecture = architecture;
    wrapper_.content = &content_;
  }
  DeviceCode(const DeviceCode&) = delete;
  DeviceCode& operator=(const DeviceCode&) = delete;

  /// Registers a kernel as the startup code of a library does. Its handle is `host_function`.
  void add_kernel(const void* host_function) {
    using Register = void** (*)(void*);
    const auto register_binary = reinterpret_cast<Register>(dlsym(RTLD_DEFAULT, "__cudaRegisterFatBinary"));
    void* const null_argument = nullptr;
    call("__cudaRegisterFunction", register_binary(&wrapper_), host_function, null_argument, "a_kernel", 0,
         null_argument, null_argument, null_argument, null_argument, null_argument);
  }

 private:
  struct Entry {
    uint16_t kind = 0;
    uint16_t version = 0x0101;
    uint32_t header_bytes = 64;
    uint64_t body_bytes = 0;
    uint32_t unused[3] = {};
    uint32_t architecture = 0;
    uint64_t more[4] = {};
  };
  struct Content {
    uint32_t magic = 0xba55ed50;
    uint16_t version = 1;
    uint16_t header_bytes = 16;
    uint64_t body_bytes = sizeof(Entry);
    Entry entry;
  };
  struct Wrapper {
    uint32_t magic = 0x466243b1;
    uint32_t version = 1;
    const Content* content = nullptr;
    void* unused = nullptr;
  };
  Content content_;
  Wrapper wrapper_;
};

class LaunchesTest : public testing::Test {
 protected:
  void SetUp() override { virtual_gpu().reset(); }
  void TearDown() override { call("cudaGetLastError"); }

  static int launch(const void* kernel, Size grid, Size block, size_t shared_bytes = 0) {
    void** const arguments = nullptr;
    void* const stream = nullptr;
    return call("cudaLaunchKernel", kernel, grid, block, arguments, shared_bytes, stream);
  }
};

TEST_F(LaunchesTest, PtxOfAnOlderArchitectureRuns) {
  static const int kernel = 0;
  static DeviceCode code(DeviceCode::kPtx, 70);
  code.add_kernel(&kernel);
  EXPECT_EQ(launch(&kernel, {}, {}), kSuccess);
  EXPECT_EQ(launch(&kernel, {2'147'483'647, 65'535, 65'535}, {32, 32, 1}), kSuccess);
  EXPECT_EQ(launches_by_kernel(), (std::map<std::string, uint64_t>{{"a_kernel", 2}}));
  EXPECT_EQ(counters().num_launches, 2U);
}

TEST_F(LaunchesTest, InvalidLaunchesAreRejectedAndReported) {
  static const int kernel = 0;
  static DeviceCode code(DeviceCode::kPtx, 70);
  code.add_kernel(&kernel);
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch(&kernel, {0, 1, 1}, {}), kInvalidConfiguration);
  EXPECT_EQ(launch(&kernel, {1, 65'536, 1}, {}), kInvalidConfiguration);
  EXPECT_EQ(launch(&kernel, {}, {1025, 1, 1}), kInvalidConfiguration);
  EXPECT_EQ(launch(&kernel, {}, {32, 33, 1}), kInvalidConfiguration);
  EXPECT_EQ(launch(&kernel, {}, {1, 1, 65}), kInvalidConfiguration);
  EXPECT_EQ(launch(&kernel, {}, {}, 48 * 1024 + 1), kInvalidValue);
  const std::string output = testing::internal::GetCapturedStderr();
  EXPECT_NE(output.find("launch rejected, grid: grid 0,1,1, block 1,1,1"), std::string::npos) << output;
  EXPECT_NE(output.find("a_kernel"), std::string::npos) << output;
  EXPECT_EQ(counters().num_rejected_launches, 6U);
  EXPECT_EQ(counters().num_launches, 0U);
}

TEST_F(LaunchesTest, SharedMemoryLimitCanBeRaised) {
  static const int kernel = 0;
  static DeviceCode code(DeviceCode::kPtx, 70);
  code.add_kernel(&kernel);
  constexpr int kMaxDynamicSharedMemory = 8;  // cudaFuncAttributeMaxDynamicSharedMemorySize
  EXPECT_EQ(call("cudaFuncSetAttribute", &kernel, kMaxDynamicSharedMemory, 60'000), kSuccess);
  EXPECT_EQ(launch(&kernel, {}, {}, 60'000), kSuccess);
  EXPECT_EQ(call("cudaFuncSetAttribute", &kernel, kMaxDynamicSharedMemory, 228 * 1024), kInvalidValue);
}

TEST_F(LaunchesTest, MachineCodeRunsOnItsMajorVersionOnly) {
  static const int kernel = 0;
  static DeviceCode code(DeviceCode::kMachineCode, 60);
  code.add_kernel(&kernel);
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch(&kernel, {}, {}), kNoKernelImage);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("no code for this architecture"), std::string::npos);
}

TEST_F(LaunchesTest, UnregisteredKernelIsRejected) {
  testing::internal::CaptureStderr();
  const int not_a_kernel = 0;
  EXPECT_EQ(launch(&not_a_kernel, {}, {}), kInvalidFunction);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("launch rejected"), std::string::npos);
  EXPECT_EQ(counters().num_rejected_launches, 1U);
}

}  // namespace
}  // namespace vlmtrain
