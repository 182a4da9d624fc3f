#include "vlmtrain/memory/cpu_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "io/temporary_folder.h"

namespace vlmtrain::memory {
namespace {

/// A machine with files in a temporary directory.
class CpuInfoTest : public io::TemporaryFolderTest {
 protected:
  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((folder() / name).parent_path());
    put(name, content);
  }
  std::optional<double> quota() const { return read_cpu_info(folder()).cpu_quota_cores; }
};

TEST_F(CpuInfoTest, ReadsModelAndFlags) {
  write("proc/cpuinfo",
        "processor\t: 0\nmodel name\t: AMD EPYC 9R14\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor\t: 1\nmodel "
        "name\t: another\nflags\t\t: fpu\n");
  const auto actual = read_cpu_info(folder());
  EXPECT_EQ(actual.model, "AMD EPYC 9R14");
  EXPECT_TRUE(actual.flags.contains("avx2"));
  EXPECT_TRUE(actual.has_bf16());
  EXPECT_GE(actual.num_usable_cores, 1);
  EXPECT_GE(actual.num_machine_cores, actual.num_usable_cores);
}

TEST_F(CpuInfoTest, MissingFilesAreNoError) {
  const auto actual = read_cpu_info(folder());
  EXPECT_EQ(actual.model, "");
  EXPECT_FALSE(actual.has_bf16());
  EXPECT_FALSE(actual.cpu_quota_cores);
}

TEST_F(CpuInfoTest, ReadsMinQuotaVersion2) {
  write("proc/self/cgroup", "0::/job/step\n");
  EXPECT_FALSE(quota());
  write("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  EXPECT_FALSE(quota());
  write("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(quota().value(), 1.5);
  write("sys/fs/cgroup/job/step/cpu.max", "50000 100000\n");
  EXPECT_DOUBLE_EQ(quota().value(), 0.5);
}

TEST_F(CpuInfoTest, LimitsThreadsToControlGroup) {
  EXPECT_EQ(read_cpu_info(folder()).num_startable_threads, std::nullopt);
  write("proc/self/cgroup", "0::/job/step\n5:pids:/slurm/job_7\n");
  write("sys/fs/cgroup/job/pids.max", "max\n");
  write("sys/fs/cgroup/job/pids.current", "30\n");
  EXPECT_EQ(read_cpu_info(folder()).num_startable_threads, std::nullopt);
  write("sys/fs/cgroup/job/step/pids.max", "100\n");
  write("sys/fs/cgroup/job/step/pids.current", "20\n");
  EXPECT_EQ(read_cpu_info(folder()).num_startable_threads, 80);
  write("sys/fs/cgroup/pids/slurm/job_7/pids.max", "40\n");
  write("sys/fs/cgroup/pids/slurm/job_7/pids.current", "50\n");
  EXPECT_EQ(read_cpu_info(folder()).num_startable_threads, 0);
}

TEST(DefaultThreadsTest, UsesMinOfCoresQuotaAndPids) {
  EXPECT_EQ(compute_default_num_threads(CpuInfo{.num_usable_cores = 8}), 8);
  EXPECT_EQ(compute_default_num_threads(CpuInfo{.num_usable_cores = 8, .cpu_quota_cores = 16.0}), 8);
  EXPECT_EQ(compute_default_num_threads(CpuInfo{.num_usable_cores = 8, .cpu_quota_cores = 2.0}), 2);
  EXPECT_EQ(compute_default_num_threads(CpuInfo{.num_usable_cores = 8, .cpu_quota_cores = 2.5}), 3);
  EXPECT_EQ(compute_default_num_threads(CpuInfo{.num_usable_cores = 8, .cpu_quota_cores = 0.2}), 1);
  EXPECT_EQ(compute_default_num_threads(CpuInfo{.num_usable_cores = 64, .num_startable_threads = 100}), 25);
  EXPECT_EQ(compute_default_num_threads(
                CpuInfo{.num_usable_cores = 64, .cpu_quota_cores = 4.0, .num_startable_threads = 1000}),
            4);
  EXPECT_EQ(compute_default_num_threads(CpuInfo{.num_usable_cores = 64, .num_startable_threads = 0}), 1);
  EXPECT_EQ(compute_default_num_threads(CpuInfo{}), 1);
}

TEST_F(CpuInfoTest, ReadsQuotaVersion1) {
  write("proc/self/cgroup", "4:cpu,cpuacct:/slurm/job_7\n3:memory:/slurm/job_7\n");
  write("sys/fs/cgroup/cpu/slurm/job_7/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/slurm/job_7/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(quota());
  write("sys/fs/cgroup/cpu/slurm/job_7/cpu.cfs_quota_us", "400000\n");
  EXPECT_DOUBLE_EQ(quota().value(), 4);
}

TEST(OneDnnIsaTest, ProcessorAndLimitDecide) {
  const std::set<std::string> avx2{"sse4_1", "avx", "avx2", "avx_vnni"};
  std::set<std::string> zen4 = avx2, sapphire_rapids;
  zen4.insert({"avx512bw", "avx512_vnni", "avx512_bf16"});
  sapphire_rapids = zen4;
  sapphire_rapids.insert({"avx512_fp16", "amx_bf16"});
  const auto expect = [](const std::set<std::string>& flags, const char* max_isa, const char* name, const char* bf16) {
    const OneDnnIsa isa = derive_onednn_isa(flags, max_isa);
    EXPECT_EQ(isa.name, name) << max_isa;
    EXPECT_EQ(isa.bf16_matmul, bf16) << max_isa;
  };
  expect({}, "", "", "emulated");
  expect(avx2, "", "AVX2", "emulated");
  expect({"sse4_1", "avx", "avx2", "avx512_bf16"}, "", "AVX2", "emulated");  // flags masked by a hypervisor
  expect(zen4, "DEFAULT", "AVX512_CORE_BF16", "AVX512-BF16");
  expect(sapphire_rapids, "", "AVX512_CORE_AMX", "AMX");
  expect(sapphire_rapids, "avx512_core_bf16", "AVX512_CORE_BF16", "AVX512-BF16");
  expect(sapphire_rapids, "AVX10_1_512", "AVX512_CORE_FP16", "AVX512-BF16");
  expect(sapphire_rapids, "AVX10_1_512_AMX", "AVX512_CORE_AMX", "AMX");
  expect(sapphire_rapids, "AVX2_VNNI_2", "AVX2", "emulated");
  expect(avx2, "AVX512_CORE", "AVX2", "emulated");
  EXPECT_FALSE(derive_onednn_isa(zen4, "").has_fp16_matmul);
  EXPECT_TRUE(derive_onednn_isa(sapphire_rapids, "").has_fp16_matmul);
  EXPECT_FALSE(derive_onednn_isa(sapphire_rapids, "AVX512_CORE_BF16").has_fp16_matmul);
}

TEST(CpuKernelsTest, ReportsTheKernelsOfThisProcess) {
  const auto kernels = get_cpu_kernel_info(read_cpu_info());
  EXPECT_THAT(kernels.aten_isa, testing::Not(testing::IsEmpty()));
  EXPECT_GE(kernels.num_threads, 1);
  EXPECT_THAT(kernels.onednn_version, testing::MatchesRegex("[0-9]+[.][0-9]+[.][0-9]+"));
}

}  // namespace
}  // namespace vlmtrain::memory
