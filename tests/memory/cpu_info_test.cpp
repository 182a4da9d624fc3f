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

/// Returns output like that of oneDNN 3.10 in LibTorch 2.11, with the given kernel names.
std::string make_output(const std::string& isa, const std::string& exec) {
  return "aten,AVX512\nthreads,2\nonednn_verbose,v1,info,oneDNN v3.10.2 (commit "
         "f1d471933dc852f956fd05389f9313c7148783d5)\nonednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:2\n"
         "onednn_verbose,v1,info,cpu,isa:" +
         isa + "\nonednn_verbose,v1,info,gpu,runtime:none\n" + exec;
}

std::string make_matmul_line(const std::string& implementation) {
  return "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:ab::f0,,,256x256,0.01\n"
         "onednn_verbose,v1,primitive,exec,cpu,matmul," +
         implementation + ",undef,src:bf16::blocked:ab::f0,,,256x256:256x256,0.1\n";
}

TEST(CpuKernelsTest, ParsesOneDnnOutput) {
  const auto amx = parse_cpu_kernel_info(make_output("Intel AVX-512 with AVX512BW, AVX512VL, and Intel AMX",
                                                     make_matmul_line("brg_matmul:avx10_1_512_amx")));
  EXPECT_EQ(amx.bf16_matmul_support, Bf16MatmulSupport::kAmx);
  EXPECT_EQ(amx.aten_isa, "AVX512");
  EXPECT_EQ(amx.num_threads, 2);
  EXPECT_EQ(amx.onednn_version, "3.10.2");
  EXPECT_EQ(amx.onednn_isa, "Intel AVX-512 with AVX512BW, AVX512VL, and Intel AMX");
  EXPECT_EQ(amx.bf16_matmul_kernel, "brg_matmul:avx10_1_512_amx");
  EXPECT_EQ(
      parse_cpu_kernel_info(make_output("x", make_matmul_line("brg_matmul:avx512_core_bf16"))).bf16_matmul_support,
      Bf16MatmulSupport::kAvx512);
}

TEST(CpuKernelsTest, ReportsEmulatedBf16) {
  EXPECT_EQ(parse_cpu_kernel_info(make_output("x", make_matmul_line("gemm:jit:bf16"))).bf16_matmul_support,
            Bf16MatmulSupport::kEmulated);
  const auto empty = parse_cpu_kernel_info(make_output("Intel AVX2", ""));
  EXPECT_EQ(empty.bf16_matmul_support, Bf16MatmulSupport::kEmulated) << "ATen's own loops";
  EXPECT_EQ(empty.bf16_matmul_kernel, "");
}

TEST(CpuKernelsTest, MissingFieldsAreEmpty) {
  const auto empty = parse_cpu_kernel_info("garbage\n,,,\n");
  EXPECT_EQ(empty.aten_isa, "");
  EXPECT_EQ(empty.onednn_version, "");
}

}  // namespace
}  // namespace vlmtrain::memory
