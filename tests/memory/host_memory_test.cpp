#include "vlmtrain/memory/host_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "io/temporary_folder.h"
#include "vlmtrain/memory/host_arena.h"

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

  int64_t limit() const { return get_host_limit_bytes(folder()); }
};

TEST_F(HostLimitTest, EqualsMachineMemoryWithoutControlGroups) {
  EXPECT_EQ(limit(), kMachine);
  write("proc/self/cgroup", "0::/user.slice\n");
  EXPECT_EQ(limit(), kMachine);
  write("sys/fs/cgroup/user.slice/memory.max", "max\n");
  EXPECT_EQ(limit(), kMachine);
}

TEST_F(HostLimitTest, SlurmStepVersion2) {
  write("proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_batch/user/task_0\n");
  const std::string job = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/";
  write(job + "step_batch/user/task_0/memory.max", "max\n");
  write(job + "step_batch/user/memory.max", "9000000000\n");
  write(job + "memory.max", "8000000000\n");
  EXPECT_EQ(limit(), 8'000'000'000);
  write(job + "step_batch/user/memory.max", "7000000000\n");
  EXPECT_EQ(limit(), 7'000'000'000);
}

TEST_F(HostLimitTest, SlurmStepVersion1) {
  write("proc/self/cgroup", "11:cpu,cpuacct:/\n4:memory:/slurm/uid_1000/job_7/step_batch\n0::/elsewhere\n");
  const std::string memory = "sys/fs/cgroup/memory/";
  write(memory + "memory.limit_in_bytes", "9223372036854771712\n");
  write(memory + "slurm/uid_1000/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limit(), kMachine);
  write(memory + "slurm/uid_1000/job_7/memory.limit_in_bytes", "4294967296\n");
  EXPECT_EQ(limit(), 4294967296);
}

TEST_F(HostLimitTest, UsesContainerMount) {
  write("proc/self/cgroup", "4:name=systemd,memory:/docker/0123\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
  EXPECT_EQ(limit(), 2147483648);
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(limit(), 1073741824);
}

TEST_F(HostLimitTest, NeverExceedsMachineMemory) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "99999999999999\n");
  EXPECT_EQ(limit(), kMachine);
}

/// A process with 100 anonymous pages on a machine with much free memory.
class AvailableHostMemoryTest : public HostLimitTest {
 protected:
  static constexpr int64_t kPage = 4096;
  static constexpr int64_t kAnonymousBytes = 100 * kPage;

  void SetUp() override {
    HostLimitTest::SetUp();
    write("proc/meminfo", "MemTotal:       67108864 kB\nMemAvailable:   10000000 kB\n");
    write("proc/self/statm", "5000 160 60 10 0 1000 0\n");
  }

  AvailableHostMemory available_memory(const ResourceLimits& limits = {}) const {
    return get_available_host_memory(folder(), limits);
  }
};

TEST_F(AvailableHostMemoryTest, IsFreeMemoryPlusOwnUsage) {
  EXPECT_EQ(available_memory().bytes, 10'000'000 * int64_t{1024} + kAnonymousBytes);
  EXPECT_EQ(available_memory().limit_source, "the machine's available memory");
}

TEST_F(AvailableHostMemoryTest, SubtractsUsageInControlGroup) {
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/memory.max", "8000000000\n");
  write("sys/fs/cgroup/job/memory.current", "3000000000\n");
  EXPECT_EQ(available_memory().bytes, 5'000'000'000 + kAnonymousBytes);
  EXPECT_THAT(available_memory().limit_source, testing::EndsWith("sys/fs/cgroup/job/memory.max"));
  // The kernel drops file caches before it kills a process.
  write("sys/fs/cgroup/job/memory.stat", "anon 900\nfile 700\ninactive_file 400000000\nactive_file 600000000\n");
  EXPECT_EQ(available_memory().bytes, 6'000'000'000 + kAnonymousBytes);
  // The group with the least free memory counts, not the one with the lowest limit.
  write("sys/fs/cgroup/job/step/memory.max", "7000000000\n");
  write("sys/fs/cgroup/job/step/memory.current", "100000000\n");
  EXPECT_EQ(available_memory().bytes, 6'000'000'000 + kAnonymousBytes);
  write("sys/fs/cgroup/job/step/memory.current", "6000000000\n");
  EXPECT_EQ(available_memory().bytes, 1'000'000'000 + kAnonymousBytes);
}

TEST_F(AvailableHostMemoryTest, ControlGroupVersion1) {
  write("proc/self/cgroup", "4:memory:/slurm/job\n");
  const std::string group = "sys/fs/cgroup/memory/slurm/job/";
  write(group + "memory.limit_in_bytes", "4000000000\n");
  write(group + "memory.usage_in_bytes", "3000000000\n");
  write(group + "memory.stat", "inactive_file 1\ntotal_inactive_file 500000000\ntotal_active_file 200000000\n");
  EXPECT_EQ(available_memory().bytes, 1'700'000'000 + kAnonymousBytes);
  // The kernel counts in batches, so usage may exceed the limit.
  write(group + "memory.usage_in_bytes", "4800000000\n");
  EXPECT_EQ(available_memory().bytes, kAnonymousBytes);
}

TEST_F(AvailableHostMemoryTest, IsLimitedByUlimit) {
  EXPECT_EQ(available_memory({.address_space_bytes = 1'000'000'000}).bytes,
            1'000'000'000 - 5000 * kPage + kAnonymousBytes);
  EXPECT_EQ(available_memory({.address_space_bytes = 1'000'000'000}).limit_source,
            "the address space limit, ulimit -v");
  EXPECT_EQ(available_memory({.data_segment_bytes = 500'000'000}).bytes, 500'000'000 - 1000 * kPage + kAnonymousBytes);
  EXPECT_EQ(available_memory({.data_segment_bytes = 500'000'000}).limit_source, "the data limit, ulimit -d");
  EXPECT_EQ(available_memory({.address_space_bytes = 1}).bytes, kAnonymousBytes);
}

TEST(HostMemoryTest, CurrentProcessHasMemory) {
  EXPECT_GT(get_available_host_memory().bytes, 0);
  EXPECT_LE(get_available_host_memory().bytes, get_host_limit_bytes() + get_resident_bytes());
  EXPECT_FALSE(get_available_host_memory().limit_source.empty());
}

TEST(HostMemoryTest, ResidentSetTracksUsage) {
  constexpr size_t kBytes = 64 * 1024 * 1024;
  const int64_t before = get_resident_bytes();
  const std::vector<char> used(kBytes, 1);
  EXPECT_GT(get_resident_bytes(), before + static_cast<int64_t>(kBytes) / 2);
  EXPECT_GE(get_peak_resident_bytes(), get_resident_bytes() - static_cast<int64_t>(kBytes) / 4);
  EXPECT_LT(get_resident_bytes(), get_host_limit_bytes());
  EXPECT_EQ(used.back(), 1);
}

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
