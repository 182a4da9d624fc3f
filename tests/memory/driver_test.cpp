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

/// A machine with a driver's library of a chosen kind (tests/driver_stubs), and what the kernel says of its cards.
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

  DriverPlaces places() const {
    return {.library = std::filesystem::path(VLMTRAIN_STUB_DRIVER_FOLDER) / "libcuda.so.1",
            .proc = folder_ / "proc",
            .devices = folder_ / "dev"};
  }
  static DriverAnswer ask(const DriverPlaces& places, const std::string& driver) {
    setenv("VLMTRAIN_STUB_DRIVER", driver.c_str(), 1);
    return probe_driver(places);
  }
  DriverAnswer ask(const std::string& driver) const { return ask(places(), driver); }

  /// The kernel's module has found a card.
  void add_card() const {
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

TEST_F(DriverTest, WithoutTheLibraryThereIsNoDriver) {
  DriverPlaces none = places();
  none.library = "libcuda_that_is_nowhere.so.1";
  const auto answer = probe_driver(none);
  EXPECT_EQ(answer.state, DriverState::kAbsent);
  EXPECT_EQ(answer.reason, "") << "an ordinary machine: nothing to say";
  add_card();
  const auto container = probe_driver(none);
  EXPECT_EQ(container.state, DriverState::kAbsent);
  EXPECT_THAT(container.reason, AllOf(HasSubstr("550.54.15"), HasSubstr("--nv"), HasSubstr("--gpus all")));
}

TEST_F(DriverTest, AFileThatIsNoLibraryIsAFault) {
  DriverPlaces broken = places();
  broken.library = folder_ / "libcuda.so.1";
  std::ofstream(broken.library) << "no library";
  const auto answer = probe_driver(broken);
  EXPECT_EQ(answer.state, DriverState::kUnusable);
  EXPECT_THAT(answer.reason, HasSubstr("cannot be loaded"));
}

TEST_F(DriverTest, ADriverOfCuda13IsUsable) {
  const auto answer = ask("version=13000 cards=2 architecture=89 name=NVIDIA_L4");
  EXPECT_EQ(answer.state, DriverState::kUsable) << answer.reason;
  ASSERT_EQ(answer.cards.size(), 2U);
  EXPECT_EQ(answer.cards[1].name, "NVIDIA L4");
  EXPECT_EQ(answer.cards[1].architecture, 89);
  EXPECT_EQ(ask("version=13010").state, DriverState::kUsable);
}

TEST_F(DriverTest, AnOlderDriverIsNamedWithTheOneThatIsNeeded) {
  for (const char* version : {"12080", "12040", "11040"}) {
    EXPECT_THAT(ask(std::string("version=") + version).reason, HasSubstr("580 or newer")) << version;
  }
  add_card();
  const auto answer = ask("version=12040 init=100");
  EXPECT_EQ(answer.state, DriverState::kUnusable);
  EXPECT_THAT(answer.reason, AllOf(HasSubstr("550.54.15"), HasSubstr("CUDA 12.4"), HasSubstr("580")));
}

TEST_F(DriverTest, ALibraryWithoutACardIsAMachineWithoutACard) {
  const auto answer = ask("init=100");
  EXPECT_EQ(answer.state, DriverState::kAbsent) << "a login node";
  EXPECT_THAT(answer.reason, HasSubstr("no card"));
}

TEST_F(DriverTest, CardsThatArePurposelyHiddenLeaveTheCpu) {
  add_card();
  add_device_files();
  for (const char* hidden : {"", "-1", "-1,0"}) {
    setenv("CUDA_VISIBLE_DEVICES", hidden, 1);
    const auto answer = ask("init=100");
    EXPECT_EQ(answer.state, DriverState::kHidden) << hidden;
    EXPECT_THAT(answer.reason, HasSubstr("CUDA_VISIBLE_DEVICES="));
  }
}

TEST_F(DriverTest, AVisibleDeviceThatIsNoneIsAFault) {
  add_card();
  add_device_files();
  for (const char* wrong : {"7", "NoDevFiles", "GPU-11111111-2222-3333-4444-555555555555", "MIG-0", "x"}) {
    setenv("CUDA_VISIBLE_DEVICES", wrong, 1);
    const auto answer = ask("init=100");
    EXPECT_EQ(answer.state, DriverState::kUnusable) << wrong;
    EXPECT_THAT(answer.reason, AllOf(HasSubstr(wrong), HasSubstr("nvidia-smi -L")));
  }
}

TEST_F(DriverTest, ACardWithoutItsFilesIsAContainerOrAJobWithoutOne) {
  add_card();
  const auto answer = ask("init=100");
  EXPECT_EQ(answer.state, DriverState::kUnusable);
  EXPECT_THAT(answer.reason, AllOf(HasSubstr("--nv"), HasSubstr("--gres=gpu:1")));
}

TEST_F(DriverTest, AFileThatMayNotBeOpenedIsNamed) {
  add_card();
  add_device_files();
  if (geteuid() == 0) GTEST_SKIP() << "root may open every file";
  std::filesystem::permissions(folder_ / "dev/nvidia0", std::filesystem::perms::none);
  EXPECT_THAT(ask("init=100").reason, AllOf(HasSubstr("permission denied"), HasSubstr("nvidia0")));
}

TEST_F(DriverTest, EveryFailureOfTheDriverHasItsRemedy) {
  for (const auto& [code, remedy] : {std::pair{"803", "restart the machine"},
                                     {"804", "cuda-compat"},
                                     {"802", "nvidia-fabricmanager"},
                                     {"805", "MPS"},
                                     {"999", "nvidia-modprobe"},
                                     {"34", "stub"},
                                     {"46", "another process"},
                                     {"777", "nvidia-smi"}}) {
    const auto answer = ask(std::string("init=") + code);
    EXPECT_EQ(answer.state, DriverState::kUnusable) << code;
    EXPECT_THAT(answer.reason, AllOf(HasSubstr(code), HasSubstr(remedy)));
  }
}

TEST_F(DriverTest, NoCardsAreNoDevice) {
  EXPECT_EQ(ask("cards=0").state, DriverState::kAbsent);
  add_card();
  EXPECT_EQ(ask("cards=0").state, DriverState::kUnusable);
}

TEST_F(DriverTest, EveryCaseHasAName) {
  DriverPlaces none = places();
  none.library = "libcuda_that_is_nowhere.so.1";
  EXPECT_EQ(probe_driver(none).name, "no driver");
  EXPECT_EQ(ask("").name, "usable");
  EXPECT_EQ(ask("init=100").name, "no card");
  EXPECT_EQ(ask("version=12040").name, "too old");
  EXPECT_EQ(ask("init=304").name, "no permission");
  EXPECT_EQ(ask("init=2").name, "no memory");
  EXPECT_EQ(ask("init=803").name, "fails");
  add_card();
  EXPECT_EQ(probe_driver(none).name, "no library");
  EXPECT_EQ(ask("init=100").name, "no device files");
  add_device_files();
  EXPECT_EQ(ask("init=100").name, "not granted");
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_EQ(ask("init=100").name, "hidden");
  setenv("CUDA_VISIBLE_DEVICES", "7", 1);
  EXPECT_EQ(ask("init=100").name, "names no card");
}

TEST_F(DriverTest, TellsWhatIsFreeOnACard) {
  setenv("VLMTRAIN_STUB_DRIVER", "total=25000000000 free=300000000", 1);
  const CardRoom room = room_on_card(0, places());
  EXPECT_EQ(room.error, 0);
  EXPECT_EQ(room.total_bytes, 25'000'000'000);
  EXPECT_EQ(room.free_bytes, 300'000'000);
}

TEST_F(DriverTest, ACardWithoutRoomForAContextIsFull) {
  setenv("VLMTRAIN_STUB_DRIVER", "context=2", 1);
  const CardRoom room = room_on_card(0, places());
  EXPECT_EQ(room.error, kDriverOutOfMemory);
  EXPECT_EQ(room.free_bytes, 0);
  DriverPlaces none = places();
  none.library = "libcuda_that_is_nowhere.so.1";
  EXPECT_NE(room_on_card(0, none).error, 0);
}

TEST(KernelCodeTest, BeginsWithTuringAndEndsWithItsFamilies) {
  for (const int old : {37, 52, 60, 61, 70, 72}) EXPECT_FALSE(has_kernel_code(old)) << old;
  for (const int known : {75, 80, 86, 87, 89, 90, 100, 103, 120, 121}) EXPECT_TRUE(has_kernel_code(known)) << known;
  for (const int other : {110, 130}) EXPECT_FALSE(has_kernel_code(other)) << other << ": there is no PTX";
}

}  // namespace
}  // namespace vlmtrain::memory
