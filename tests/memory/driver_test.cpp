#include "vlmtrain/memory/driver.h"

#include <stdlib.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace vlmtrain::memory {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A machine with a stub driver library (tests/driver_stubs) and files of the kernel in a temporary
/// directory.
class DriverTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "vlmtrain_driver_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    unsetenv("CUDA_VISIBLE_DEVICES");
  }
  void TearDown() override {
    unsetenv("VLMTRAIN_STUB_DRIVER");
    unsetenv("CUDA_VISIBLE_DEVICES");
    std::filesystem::remove_all(folder_);
  }

  DriverPaths get_paths() const {
    return {.library = std::filesystem::path(VLMTRAIN_STUB_DRIVER_FOLDER) / "libcuda.so.1",
            .proc_folder = folder_ / "proc",
            .device_folder = folder_ / "dev"};
  }
  static DriverProbeResult probe(const DriverPaths& paths, const std::string& driver) {
    setenv("VLMTRAIN_STUB_DRIVER", driver.c_str(), 1);
    return probe_driver(paths);
  }
  DriverProbeResult probe(const std::string& driver) const { return probe(get_paths(), driver); }

  /// Creates the files of a GPU that the kernel module has found.
  void add_gpu() const {
    std::filesystem::create_directories(folder_ / "proc/gpus/0000:01:00.0");
    std::filesystem::create_directories(folder_ / "dev");
    std::ofstream(folder_ / "proc/version")
        << "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n";
  }
  void add_device_files() const {
    for (const char* name : {"nvidia0", "nvidiactl", "nvidia-uvm"}) std::ofstream(folder_ / "dev" / name) << "";
  }

  std::filesystem::path folder_;
};

TEST_F(DriverTest, MissingLibraryMeansNoDriver) {
  DriverPaths missing = get_paths();
  missing.library = "libcuda_that_is_nowhere.so.1";
  const auto result = probe_driver(missing);
  EXPECT_EQ(result.state, DriverState::kAbsent);
  EXPECT_EQ(result.reason, "") << "an ordinary machine: nothing to say";
  add_gpu();
  const auto container = probe_driver(missing);
  EXPECT_EQ(container.state, DriverState::kAbsent);
  EXPECT_THAT(container.reason, AllOf(HasSubstr("550.54.15"), HasSubstr("--nv"), HasSubstr("--gpus all")));
}

TEST_F(DriverTest, InvalidLibraryIsUnusable) {
  DriverPaths broken = get_paths();
  broken.library = folder_ / "libcuda.so.1";
  std::ofstream(broken.library) << "no library";
  const auto result = probe_driver(broken);
  EXPECT_EQ(result.state, DriverState::kUnusable);
  EXPECT_THAT(result.reason, HasSubstr("cannot be loaded"));
}

TEST_F(DriverTest, Cuda13DriverIsUsable) {
  const auto result = probe("version=13000 gpus=2 architecture=89 name=NVIDIA_L4");
  EXPECT_EQ(result.state, DriverState::kUsable) << result.reason;
  ASSERT_EQ(result.gpus.size(), 2U);
  EXPECT_EQ(result.gpus[1].name, "NVIDIA L4");
  EXPECT_EQ(result.gpus[1].architecture, 89);
  EXPECT_EQ(probe("version=13010").state, DriverState::kUsable);
}

TEST_F(DriverTest, OldDriverIsReportedWithRequiredVersion) {
  for (const char* version : {"12080", "12040", "11040"}) {
    EXPECT_THAT(probe(std::string("version=") + version).reason, HasSubstr("580 or newer")) << version;
  }
  add_gpu();
  const auto result = probe("version=12040 init=100");
  EXPECT_EQ(result.state, DriverState::kUnusable);
  EXPECT_THAT(result.reason, AllOf(HasSubstr("550.54.15"), HasSubstr("CUDA 12.4"), HasSubstr("580")));
}

TEST_F(DriverTest, LibraryWithoutGpuMeansNoGpu) {
  const auto result = probe("init=100");
  EXPECT_EQ(result.state, DriverState::kAbsent) << "a login node";
  EXPECT_THAT(result.reason, HasSubstr("the machine has no GPU"));
}

TEST_F(DriverTest, HiddenGpusFallBackToCpu) {
  add_gpu();
  add_device_files();
  for (const char* hidden : {"", "-1", "-1,0"}) {
    setenv("CUDA_VISIBLE_DEVICES", hidden, 1);
    const auto result = probe("init=100");
    EXPECT_EQ(result.state, DriverState::kHidden) << hidden;
    EXPECT_THAT(result.reason, HasSubstr("CUDA_VISIBLE_DEVICES="));
  }
}

TEST_F(DriverTest, InvalidVisibleDeviceIsUnusable) {
  add_gpu();
  add_device_files();
  for (const char* invalid : {"7", "NoDevFiles", "GPU-11111111-2222-3333-4444-555555555555", "MIG-0", "x"}) {
    setenv("CUDA_VISIBLE_DEVICES", invalid, 1);
    const auto result = probe("init=100");
    EXPECT_EQ(result.state, DriverState::kUnusable) << invalid;
    EXPECT_THAT(result.reason, AllOf(HasSubstr(invalid), HasSubstr("nvidia-smi -L")));
  }
}

TEST_F(DriverTest, MissingDeviceFilesSuggestContainerFlags) {
  add_gpu();
  const auto result = probe("init=100");
  EXPECT_EQ(result.state, DriverState::kUnusable);
  EXPECT_THAT(result.reason, AllOf(HasSubstr("--nv"), HasSubstr("--gres=gpu:1")));
}

TEST_F(DriverTest, PermissionErrorNamesTheFile) {
  add_gpu();
  add_device_files();
  if (geteuid() == 0) GTEST_SKIP() << "root may open every file";
  std::filesystem::permissions(folder_ / "dev/nvidia0", std::filesystem::perms::none);
  EXPECT_THAT(probe("init=100").reason, AllOf(HasSubstr("permission denied"), HasSubstr("nvidia0")));
}

TEST_F(DriverTest, EveryDriverErrorHasAFix) {
  for (const auto& [code, fix] : {std::pair{"803", "restart the machine"},
                                  {"804", "cuda-compat"},
                                  {"802", "nvidia-fabricmanager"},
                                  {"805", "MPS"},
                                  {"999", "nvidia-modprobe"},
                                  {"34", "stub"},
                                  {"46", "another process"},
                                  {"777", "nvidia-smi"}}) {
    const auto result = probe(std::string("init=") + code);
    EXPECT_EQ(result.state, DriverState::kUnusable) << code;
    EXPECT_THAT(result.reason, AllOf(HasSubstr(code), HasSubstr(fix)));
  }
}

TEST_F(DriverTest, ZeroGpusMeanNoDevice) {
  EXPECT_EQ(probe("gpus=0").state, DriverState::kAbsent);
  add_gpu();
  EXPECT_EQ(probe("gpus=0").state, DriverState::kUnusable);
}

TEST_F(DriverTest, EveryStateHasAName) {
  DriverPaths missing = get_paths();
  missing.library = "libcuda_that_is_nowhere.so.1";
  EXPECT_EQ(probe_driver(missing).name, "no driver");
  EXPECT_EQ(probe("").name, "usable");
  EXPECT_EQ(probe("init=100").name, "no card");
  EXPECT_EQ(probe("version=12040").name, "too old");
  EXPECT_EQ(probe("init=304").name, "no permission");
  EXPECT_EQ(probe("init=2").name, "no memory");
  EXPECT_EQ(probe("init=803").name, "fails");
  add_gpu();
  EXPECT_EQ(probe_driver(missing).name, "no library");
  EXPECT_EQ(probe("init=100").name, "no device files");
  add_device_files();
  EXPECT_EQ(probe("init=100").name, "not granted");
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_EQ(probe("init=100").name, "hidden");
  setenv("CUDA_VISIBLE_DEVICES", "7", 1);
  EXPECT_EQ(probe("init=100").name, "names no card");
}

TEST_F(DriverTest, ReportsFreeMemory) {
  setenv("VLMTRAIN_STUB_DRIVER", "total=25000000000 free=300000000", 1);
  const GpuMemoryInfo info = query_gpu_memory(0, get_paths());
  EXPECT_EQ(info.error, 0);
  EXPECT_EQ(info.total_bytes, 25'000'000'000);
  EXPECT_EQ(info.free_bytes, 300'000'000);
}

TEST_F(DriverTest, GpuWithoutMemoryForContextIsFull) {
  setenv("VLMTRAIN_STUB_DRIVER", "context=2", 1);
  const GpuMemoryInfo info = query_gpu_memory(0, get_paths());
  EXPECT_EQ(info.error, kCudaErrorOutOfMemory);
  EXPECT_EQ(info.free_bytes, 0);
  DriverPaths missing = get_paths();
  missing.library = "libcuda_that_is_nowhere.so.1";
  EXPECT_NE(query_gpu_memory(0, missing).error, 0);
}

TEST(KernelCodeTest, CoversTuringToBlackwell) {
  for (const int unsupported : {37, 52, 60, 61, 70, 72}) EXPECT_FALSE(has_kernel_code(unsupported)) << unsupported;
  for (const int supported : {75, 80, 86, 87, 89, 90, 100, 103, 120, 121})
    EXPECT_TRUE(has_kernel_code(supported)) << supported;
  for (const int uncovered : {110, 130}) EXPECT_FALSE(has_kernel_code(uncovered)) << uncovered << ": there is no PTX";
}

}  // namespace
}  // namespace vlmtrain::memory
