#include "vlmtrain/memory/host.h"

#include <gtest/gtest.h>

#include <vector>

#include "io/temporary_folder.h"
#include "memory/host_limit.h"

namespace vlmtrain::memory {
namespace {

constexpr int64_t kMachine = 64 * int64_t{1024} * 1024 * 1024;

class HostLimitTest : public io::TemporaryFolderTest {
 protected:
  void SetUp() override {
    TemporaryFolderTest::SetUp();
    write("proc/meminfo", "MemFree:         1000 kB\nMemTotal:       67108864 kB\nMemAvailable:   2000 kB\n");
  }

  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((folder() / name).parent_path());
    put(name, content);
  }

  int64_t limit() const { return host_limit_bytes(folder()); }
};

TEST_F(HostLimitTest, IsTheMachinesWithoutControlGroups) {
  EXPECT_EQ(limit(), kMachine);
  write("proc/self/cgroup", "0::/user.slice\n");
  EXPECT_EQ(limit(), kMachine);
  write("sys/fs/cgroup/user.slice/memory.max", "max\n");
  EXPECT_EQ(limit(), kMachine);
}

TEST_F(HostLimitTest, IsThatOfASlurmStepInVersion2) {
  write("proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_batch/user/task_0\n");
  const std::string job = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/";
  write(job + "step_batch/user/task_0/memory.max", "max\n");
  write(job + "step_batch/user/memory.max", "9000000000\n");
  write(job + "memory.max", "8000000000\n");
  EXPECT_EQ(limit(), 8'000'000'000);
  write(job + "step_batch/user/memory.max", "7000000000\n");
  EXPECT_EQ(limit(), 7'000'000'000);
}

TEST_F(HostLimitTest, IsThatOfASlurmStepInVersion1) {
  write("proc/self/cgroup", "11:cpu,cpuacct:/\n4:memory:/slurm/uid_1000/job_7/step_batch\n0::/elsewhere\n");
  const std::string memory = "sys/fs/cgroup/memory/";
  write(memory + "memory.limit_in_bytes", "9223372036854771712\n");
  write(memory + "slurm/uid_1000/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limit(), kMachine);
  write(memory + "slurm/uid_1000/job_7/memory.limit_in_bytes", "4294967296\n");
  EXPECT_EQ(limit(), 4294967296);
}

TEST_F(HostLimitTest, IsTheContainersWhoseOwnGroupIsTheMount) {
  write("proc/self/cgroup", "4:name=systemd,memory:/docker/0123\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
  EXPECT_EQ(limit(), 2147483648);
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(limit(), 1073741824);
}

TEST_F(HostLimitTest, IsNeverMoreThanTheMachineHas) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "99999999999999\n");
  EXPECT_EQ(limit(), kMachine);
}

TEST(HostMemory, ResidentSetFollowsWhatIsUsed) {
  constexpr size_t kBytes = 64 * 1024 * 1024;
  const int64_t before = host_bytes();
  const std::vector<char> used(kBytes, 1);
  EXPECT_GT(host_bytes(), before + static_cast<int64_t>(kBytes) / 2);
  EXPECT_GE(host_peak_bytes(), host_bytes() - static_cast<int64_t>(kBytes) / 4);
  EXPECT_LT(host_bytes(), host_limit_bytes());
  EXPECT_EQ(used.back(), 1);
}

}  // namespace
}  // namespace vlmtrain::memory
