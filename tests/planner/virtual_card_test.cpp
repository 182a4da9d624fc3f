#include "vlmtrain/planner/virtual_card.h"

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
#include "vlmtrain/planner/rehearsal_process.h"

namespace vlmtrain::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// What `ulimit -v` sets, for as long as it lives: 4 GB above what the process has.
class FewAddresses {
 public:
  FewAddresses() {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    rlimit few = before_;
    few.rlim_cur = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + 4'000'000'000;
    setrlimit(RLIMIT_AS, &few);
  }
  ~FewAddresses() { setrlimit(RLIMIT_AS, &before_); }
  FewAddresses(const FewAddresses&) = delete;
  FewAddresses& operator=(const FewAddresses&) = delete;

 private:
  rlimit before_{};
};

TEST(RequireAddresses, AreThereWithoutALimit) {
  EXPECT_NO_THROW(require_addresses());
}

TEST(RequireAddresses, NamesTheLimitThatLeavesTooFew) {
  const FewAddresses few;
  const auto names_limit = AllOf(HasSubstr("address space"), HasSubstr("ulimit -v unlimited"));
  EXPECT_THAT(message_of([] { require_addresses(); }, ExitCode::kFailed), names_limit);
  // Before any process is started.
  EXPECT_THAT(
      message_of([] { RehearsalProcess({}, {.gpu = "h100", .memory_bytes = std::nullopt}); }, ExitCode::kFailed),
      names_limit);
  EXPECT_THAT(message_of([] { restart_on({.gpu = "h100", .memory_bytes = std::nullopt}); }, ExitCode::kFailed),
              names_limit);
}

/// LD_PRELOAD as somebody has set it, for as long as it lives.
class Preloaded {
 public:
  explicit Preloaded(const std::string& libraries) {
    if (const char* const before = std::getenv("LD_PRELOAD")) before_ = before;
    setenv("LD_PRELOAD", libraries.c_str(), 1);
  }
  ~Preloaded() { before_ ? setenv("LD_PRELOAD", before_->c_str(), 1) : unsetenv("LD_PRELOAD"); }
  Preloaded(const Preloaded&) = delete;
  Preloaded& operator=(const Preloaded&) = delete;

 private:
  std::optional<std::string> before_;
};

std::map<std::string, std::string> environment() {
  std::map<std::string, std::string> variables;
  for (auto& [name, value] : environment_for_virtual_cards()) variables[name] = value;
  return variables;
}

TEST(EnvironmentForVirtualCardsTest, WhatIsPreloadedStaysButForWhatHasToDoWithCuda) {
  const parity::TemporaryFolder folder;
  const auto put = [&](const std::string& name, const std::string& content) {
    const auto path = folder.path() / name;
    std::ofstream(path) << content;
    return path.string();
  };
  const std::string harmless = put("libharmless.so", "malloc free");
  const std::string profiler = put("libprofiler.so", std::string("calls\0cuInit\0", 13));
  const Preloaded preloaded(harmless + ":" + profiler + " libnvidia-ml.so.1:libjemalloc.so");
  const auto variables = environment();
  EXPECT_THAT(variables.at("LD_PRELOAD"), testing::StartsWith(harmless + ":libjemalloc.so:/"));
  EXPECT_THAT(variables.at("LD_PRELOAD"), testing::Not(HasSubstr("libprofiler")));
  EXPECT_FALSE(variables.contains("LD_LIBRARY_PATH")) << "the stand-ins are named by their paths";
}

TEST(SettingsOfTest, SayWhichCardAndNothingOfWhereItsLibrariesAre) {
  const auto settings = settings_of({.gpu = "h100", .memory_bytes = 5, .multiprocessors = 7});
  EXPECT_THAT(settings, testing::IsSupersetOf(Variables{{"VLMTRAIN_VGPU_CARD", "h100"},
                                                        {"VLMTRAIN_VGPU_BYTES", "5"},
                                                        {"VLMTRAIN_VGPU_REPORTED_BYTES", ""},
                                                        {"VLMTRAIN_VGPU_MULTIPROCESSORS", "7"}}));
  for (const auto& [name, value] : settings) EXPECT_THAT(name, testing::StartsWith("VLMTRAIN_VGPU_"));
}

TEST(ReachesRehearsalsTest, WhatChangesARehearsalDoesNot) {
  for (const auto* const variable : {"PATH", "HOME", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "VLMTRAIN_LIBTORCH"}) {
    EXPECT_TRUE(reaches_rehearsals(variable)) << variable;
  }
  for (const auto* const variable : {"LD_AUDIT", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE",
                                     "NVIDIA_TF32_OVERRIDE", "VLMTRAIN_VGPU_CARD"}) {
    EXPECT_FALSE(reaches_rehearsals(variable)) << variable;
  }
}

}  // namespace
}  // namespace vlmtrain::planner
