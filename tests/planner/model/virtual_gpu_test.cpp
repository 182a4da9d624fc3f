#include "vlmtrain/planner/virtual_gpu.h"

#include <sys/resource.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>

#include "parity/temporary_folder.h"
#include "planner/user_error.h"
#include "vlmtrain/planner/backend.h"

namespace vlmtrain::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Limits addresses like `ulimit -v` during its lifetime, to 4 GB more than the process has.
class ScopedAddressLimit {
 public:
  ScopedAddressLimit() {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &previous_);
    rlimit limited = previous_;
    limited.rlim_cur = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + 4'000'000'000;
    setrlimit(RLIMIT_AS, &limited);
  }
  ~ScopedAddressLimit() { setrlimit(RLIMIT_AS, &previous_); }
  ScopedAddressLimit(const ScopedAddressLimit&) = delete;
  ScopedAddressLimit& operator=(const ScopedAddressLimit&) = delete;

 private:
  rlimit previous_{};
};

TEST(RequireAddressSpaceTest, SucceedsWithoutALimit) {
  EXPECT_NO_THROW(check_address_space());
}

TEST(RequireAddressSpaceTest, NamesTheLimit) {
  const ScopedAddressLimit limited;
  const auto names_limit = AllOf(HasSubstr("address space"), HasSubstr("ulimit -v unlimited"));
  EXPECT_THAT(get_usage_error([] { check_address_space(); }, ExitCode::kFailed), names_limit);
  // Before any process is started.
  EXPECT_THAT(
      get_usage_error([] { DryRunProcess({}, {.gpu = "h100", .memory_bytes = std::nullopt}); }, ExitCode::kFailed),
      names_limit);
  EXPECT_THAT(
      get_usage_error([] { restart_on_virtual_gpu({.gpu = "h100", .memory_bytes = std::nullopt}); }, ExitCode::kFailed),
      names_limit);
}

/// Sets LD_PRELOAD during its lifetime.
class ScopedPreload {
 public:
  explicit ScopedPreload(const std::string& libraries) {
    if (const char* const previous = std::getenv("LD_PRELOAD")) previous_ = previous;
    setenv("LD_PRELOAD", libraries.c_str(), 1);
  }
  ~ScopedPreload() { previous_ ? setenv("LD_PRELOAD", previous_->c_str(), 1) : unsetenv("LD_PRELOAD"); }
  ScopedPreload(const ScopedPreload&) = delete;
  ScopedPreload& operator=(const ScopedPreload&) = delete;

 private:
  std::optional<std::string> previous_;
};

std::map<std::string, std::string> read_environment() {
  std::map<std::string, std::string> variables;
  for (auto& [name, value] : make_preload_environment()) variables[name] = value;
  return variables;
}

TEST(PreloadEnvironmentTest, KeepsPreloadedLibrariesExceptCuda) {
  const parity::TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& content) {
    const auto path = folder.path() / name;
    std::ofstream(path) << content;
    return path.string();
  };
  const std::string harmless = write("libharmless.so", "malloc free");
  const std::string profiler = write("libprofiler.so", std::string("calls\0cuInit\0", 13));
  const ScopedPreload preload(harmless + ":" + profiler + " libnvidia-ml.so.1:libjemalloc.so");
  const auto variables = read_environment();
  EXPECT_THAT(variables.at("LD_PRELOAD"), testing::StartsWith(harmless + ":libjemalloc.so:/"));
  EXPECT_THAT(variables.at("LD_PRELOAD"), testing::Not(HasSubstr("libprofiler")));
  EXPECT_FALSE(variables.contains("LD_LIBRARY_PATH")) << "the stub libraries are named by their paths";
}

TEST(GpuEnvironmentTest, DescribesTheGpuOnly) {
  const auto settings = make_gpu_environment({.gpu = "h100", .memory_bytes = 5, .num_multiprocessors = 7});
  EXPECT_THAT(settings, testing::IsSupersetOf(EnvironmentVariables{{"VLMTRAIN_VGPU_NAME", "h100"},
                                                                   {"VLMTRAIN_VGPU_BYTES", "5"},
                                                                   {"VLMTRAIN_VGPU_REPORTED_BYTES", ""},
                                                                   {"VLMTRAIN_VGPU_MULTIPROCESSORS", "7"}}));
  for (const auto& [name, value] : settings) EXPECT_THAT(name, testing::StartsWith("VLMTRAIN_VGPU_"));
}

TEST(IsPassedToDryRunsTest, RejectsVariablesThatChangeADryRun) {
  for (const auto* const variable : {"PATH", "HOME", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "VLMTRAIN_LIBTORCH"}) {
    EXPECT_TRUE(is_passed_to_dry_runs(variable)) << variable;
  }
  for (const auto* const variable : {"LD_AUDIT", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE",
                                     "NVIDIA_TF32_OVERRIDE", "VLMTRAIN_VGPU_NAME"}) {
    EXPECT_FALSE(is_passed_to_dry_runs(variable)) << variable;
  }
}

}  // namespace
}  // namespace vlmtrain::planner
