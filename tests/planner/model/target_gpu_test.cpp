#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "planner/dry_run.h"
#include "planner/user_error.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/planner/target.h"

namespace vlmtrain::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(FindTargetGpuTest, FindsEachGpuOfTheTable) {
  for (const auto& gpu : memory::list_gpu_specs()) {
    const TargetGpu target = find_target_gpu(std::string(gpu.name));
    EXPECT_EQ(target.gpu, &gpu);
    EXPECT_EQ(target.memory_bytes, gpu.memory_bytes);
    EXPECT_EQ(target.context_bytes, gpu.context_bytes);
    EXPECT_THAT(target.description, HasSubstr(std::string(gpu.device_name)));
  }
}

TEST(FindTargetGpuTest, AcceptsNamesOfDriversAndUsers) {
  const std::pair<const char*, const char*> kNames[] = {{"4090", "rtx4090"},
                                                        {"RTX 4090", "rtx4090"},
                                                        {"NVIDIA GeForce RTX 4090", "rtx4090"},
                                                        {"H100", "h100"},
                                                        {"rtx-5090", "rtx5090"},
                                                        {"NVIDIA H100 80GB HBM3", "h100"},
                                                        {"h100 80gb", "h100"},
                                                        {"A100-SXM4-40GB", "a100-40"},
                                                        {"a100_80", "a100-80"},
                                                        {"Tesla T4", "t4"},
                                                        {"RTX A6000", "a6000"},
                                                        {"L40S", "l40s"},
                                                        {"3060", "rtx3060"},
                                                        {"RTX 4080", "rtx4080"},
                                                        {"RTX 4080 SUPER", "rtx4080-super"},
                                                        {"4070ti", "rtx4070ti"},
                                                        {"RTX 3060 12GB", "rtx3060"},
                                                        {"4090 24 GB", "rtx4090"},
                                                        {"4090 laptop", "rtx4090-laptop"},
                                                        {"RTX 3080 Mobile", "rtx3080-laptop"},
                                                        {"NVIDIA GeForce RTX 4060 Laptop GPU", "rtx4060-laptop"},
                                                        {"RTX 6000 Ada", "rtx6000-ada"},
                                                        {"RTX PRO 6000", "rtx-pro-6000"},
                                                        {"A10G", "a10g"},
                                                        {"a100 40gb", "a100-40"}};
  for (const auto& [alias, name] : kNames) EXPECT_EQ(find_target_gpu(alias).gpu->name, name) << alias;
  EXPECT_EQ(find_target_gpu("RTX 4060 Ti 8GB").gpu->name, "rtx4060ti-8");
  EXPECT_EQ(find_target_gpu("4060ti 16").gpu->name, "rtx4060ti-16");
  EXPECT_THAT(get_usage_error([] { find_target_gpu("4060 Ti"); }),
              testing::EndsWith("ambiguous; choose one of rtx4060ti-16, rtx4060ti-8"));
  EXPECT_THAT(get_usage_error([] { find_target_gpu("a100"); }),
              testing::EndsWith("ambiguous; choose one of a100-40, a100-80"));
  EXPECT_THAT(get_usage_error([] { find_target_gpu("rtx"); }), HasSubstr("ambiguous; choose one of "));
  for (const char* name : {"RTX 4085", "NVIDIA", "-", "3060 8GB", "4090 48GB", "24GB"}) {
    EXPECT_THAT(get_usage_error([&] { find_target_gpu(name); }), HasSubstr("unknown")) << name;
  }
}

TEST(FindTargetGpuTest, AnUnknownNameIsAnErrorWithASuggestion) {
  EXPECT_THAT(get_usage_error([] { find_target_gpu("rtx409"); }),
              AllOf(HasSubstr("rtx409"), HasSubstr("did you mean rtx4090?"), HasSubstr("rtx4080"),
                    Not(HasSubstr("a100-40")), HasSubstr("--gpu-gb GB")));
  EXPECT_THAT(get_usage_error([] { find_target_gpu("something quite different"); }),
              AllOf(HasSubstr("unknown"), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(get_usage_error([] { find_target_gpu(""); }), HasSubstr("known GPUs are"));
}

TEST(MakeTargetGpuBySizeTest, HasTheMemoryThatDriversReport) {
  for (const double size : {1.0, 8.0, 12.0, 24.0, 47.5, 80.0, 1024.0}) {
    const TargetGpu target = make_target_gpu(size);
    EXPECT_EQ(target.memory_bytes % (2 << 20), 0) << "drivers hand out pages of 2 MiB";
    EXPECT_LE(static_cast<double>(target.memory_bytes), 0.98 * size * kGiB);
    EXPECT_GT(static_cast<double>(target.memory_bytes), 0.98 * size * kGiB - 2 * (1 << 20));
  }
}

/// A plan for a size also fits GPUs of that size, except for those with in-band ECC. The margin of
/// every mode is many times the amount by which an RTX 5090 has less.
TEST(MakeTargetGpuBySizeTest, IsHardlyLargerThanAnyGpuOfThatSize) {
  for (const auto& [size, name] : {std::pair{24.0, "rtx4090"},
                                   {24.0, "rtx3090"},
                                   {32.0, "rtx5090"},
                                   {40.0, "a100-40"},
                                   {48.0, "a6000"},
                                   {80.0, "a100-80"},
                                   {80.0, "h100"}}) {
    const auto table_bytes = find_target_gpu(name).memory_bytes;
    const auto size_bytes = make_target_gpu(size).memory_bytes;
    EXPECT_LE(static_cast<double>(size_bytes), 1.0005 * static_cast<double>(table_bytes)) << name;
    EXPECT_GE(static_cast<double>(size_bytes), 0.98 * static_cast<double>(table_bytes)) << name;
  }
}

TEST(MakeTargetGpuBySizeTest, LargerSizesHaveMoreMemory) {
  int64_t before = 0;
  for (double size = 1; size <= 1024; size += 0.5) {
    const TargetGpu target = make_target_gpu(size);
    EXPECT_GT(target.memory_bytes, before);
    EXPECT_NE(target.gpu, nullptr);
    before = target.memory_bytes;
  }
  EXPECT_EQ(make_target_gpu(24).gpu->name, "rtx4090");
  EXPECT_EQ(make_target_gpu(24.1).gpu->name, "rtx5090");
  EXPECT_EQ(make_target_gpu(80).gpu->name, "h100");
}

TEST(MakeTargetGpuBySizeTest, InvalidSizesAreRejected) {
  for (const double size : {0.0, -3.0, 0.99, 1024.1, 1e9, std::nan(""), std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(get_usage_error([&] { make_target_gpu(size); }), AllOf(HasSubstr("gpu-gb"), HasSubstr("1 to 1024")))
        << size;
  }
}

TEST(MakeTargetGpuForDeviceTest, AKnownNameUsesTheTable) {
  const memory::GpuSpec& h100 = *memory::find_gpu_spec("h100");
  const int64_t used_bytes = 700'000'000, lazy_kernel_bytes = int64_t{208} << 20;
  const TargetGpu target = make_target_gpu({.name = std::string(h100.device_name),
                                            .architecture = 90,
                                            .num_multiprocessors = 132,
                                            .total_bytes = 85'000'000'000,
                                            .free_bytes = 85'000'000'000 - used_bytes});
  EXPECT_EQ(target.gpu, &h100);
  EXPECT_EQ(target.memory_bytes, 85'000'000'000) << "as its driver says, not as the table says";
  EXPECT_EQ(target.context_bytes, used_bytes + lazy_kernel_bytes);
  EXPECT_EQ(target.other_process_bytes, 0);
  EXPECT_TRUE(target.is_context_measured);
  EXPECT_THAT(target.description, AllOf(HasSubstr("85.00 GB"), Not(HasSubstr("planned as"))));
}

TEST(MakeTargetGpuForDeviceTest, ASmallContextIsExpectedToGrow) {
  const memory::GpuSpec& h100 = *memory::find_gpu_spec("h100");
  const TargetGpu target = make_target_gpu({.name = std::string(h100.device_name),
                                            .architecture = 90,
                                            .num_multiprocessors = 132,
                                            .total_bytes = 85'000'000'000,
                                            .free_bytes = 84'900'000'000});
  EXPECT_EQ(target.context_bytes, h100.context_bytes);
  EXPECT_FALSE(target.is_context_measured);
}

TEST(MakeTargetGpuForDeviceTest, MemoryBeyondAContextBelongsToOtherProcesses) {
  const memory::GpuSpec& h100 = *memory::find_gpu_spec("h100");
  const TargetGpu target = make_target_gpu({.name = std::string(h100.device_name),
                                            .architecture = 90,
                                            .num_multiprocessors = 132,
                                            .total_bytes = 85'000'000'000,
                                            .free_bytes = 55'000'000'000});
  EXPECT_EQ(target.context_bytes, h100.context_bytes);
  EXPECT_FALSE(target.is_context_measured);
  EXPECT_EQ(target.context_bytes + target.other_process_bytes, 30'000'000'000);
}

TEST(MakeTargetGpuForDeviceTest, AnUnknownNameIsPlannedAsTheMostSimilarGpu) {
  const auto find_table_gpu = [](int architecture, int num_multiprocessors) {
    const TargetGpu target = make_target_gpu({.name = "NVIDIA Something",
                                              .architecture = architecture,
                                              .num_multiprocessors = num_multiprocessors,
                                              .total_bytes = 20'000'000'000,
                                              .free_bytes = 19'000'000'000});
    EXPECT_THAT(target.description, AllOf(HasSubstr("NVIDIA Something"), HasSubstr("planned as"),
                                          HasSubstr(std::string(target.gpu->device_name))));
    EXPECT_EQ(target.memory_bytes, 20'000'000'000);
    return target.gpu;
  };
  EXPECT_EQ(find_table_gpu(89, 64)->name, "rtx4070ti-super");
  EXPECT_EQ(find_table_gpu(89, 130)->name, "rtx4090");
  EXPECT_EQ(find_table_gpu(90, 132)->architecture, 90);
  EXPECT_EQ(find_table_gpu(103, 148)->architecture, 100) << "the next older: it runs its kernels";
  EXPECT_EQ(find_table_gpu(121, 48)->architecture, 120);
  EXPECT_THAT(get_usage_error([&] { find_table_gpu(130, 200); }, ExitCode::kFailed),
              HasSubstr("no code for compute capability 13.0"));
  EXPECT_THAT(get_usage_error([&] { find_table_gpu(70, 80); }, ExitCode::kFailed),
              HasSubstr("no code for compute capability 7.0"));
}

TEST(FindTargetGpuTest, AnUnsupportedGpuIsRejectedWithTheReason) {
  for (const char* name : {"v100", "v100-32", "p100", "gtx1080ti"}) {
    EXPECT_THAT(get_usage_error([&] { find_target_gpu(name); }),
                AllOf(HasSubstr(name), HasSubstr("no code"), HasSubstr("7.5"), HasSubstr("--gpu t4")));
  }
}

TEST(FindTargetGpuTest, KnowsMigInstances) {
  const TargetGpu instance = find_target_gpu("h100-mig-3g.40gb");
  EXPECT_EQ(instance.memory_bytes, int64_t{40'448} << 20);
  EXPECT_EQ(instance.gpu->num_multiprocessors, 60);
  EXPECT_EQ(instance.gpu->architecture, 90);
  EXPECT_THAT(instance.description, HasSubstr("MIG 3g.40gb"));
  EXPECT_THAT(get_usage_error([] { find_target_gpu("h100-mig-3g.4gb"); }),
              AllOf(HasSubstr("did you mean h100-mig-3g.40gb?"), HasSubstr("a100-80-mig-1g.10gb")));
}

TEST(MakeTargetGpuForDeviceTest, AMigInstanceIsPlannedAsItself) {
  const TargetGpu table_instance = make_target_gpu({.name = "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
                                                    .architecture = 90,
                                                    .num_multiprocessors = 60,
                                                    .total_bytes = 42'300'000'000,
                                                    .free_bytes = 41'900'000'000});
  EXPECT_EQ(table_instance.gpu->name, "h100-mig-3g.40gb");
  EXPECT_EQ(table_instance.memory_bytes, 42'300'000'000);
  EXPECT_EQ(table_instance.num_multiprocessors, 60);
  EXPECT_THAT(table_instance.description, Not(HasSubstr("planned as")));
  const TargetGpu other_instance = make_target_gpu({.name = "NVIDIA A100-SXM4-80GB MIG 2c.3g.40gb",
                                                    .architecture = 80,
                                                    .num_multiprocessors = 28,
                                                    .total_bytes = 42'300'000'000,
                                                    .free_bytes = 41'900'000'000});
  EXPECT_EQ(other_instance.gpu->name, "a100-80") << "the GPU that it is a part of";
  EXPECT_EQ(other_instance.num_multiprocessors, 28);
  EXPECT_THAT(other_instance.description, HasSubstr("with 28 multiprocessors"));
}

TEST(MarginPercentTest, GrowsWithTheModesCaution) {
  EXPECT_EQ(get_margin_percent(MemoryMode::kConservative), 10);
  EXPECT_EQ(get_margin_percent(MemoryMode::kBalanced), 5);
  EXPECT_EQ(get_margin_percent(MemoryMode::kAggressive), 2);
}

TEST(MemoryLimitTest, IsTheMemoryLessContextAndMargin) {
  const TargetGpu target = find_target_gpu("rtx4090");
  for (const auto& [name, mode] : list_memory_modes()) {
    const MemoryLimit limit = compute_memory_limit(target, mode, std::nullopt, 1);
    EXPECT_EQ(limit.allowed_bytes, target.memory_bytes);
    EXPECT_EQ(limit.context_bytes, target.context_bytes);
    EXPECT_EQ(limit.communication_bytes, 0) << "one GPU does not communicate";
    EXPECT_EQ(limit.margin_percent, get_margin_percent(mode));
    EXPECT_EQ(limit.margin_bytes,
              std::llround(static_cast<double>(target.memory_bytes) * limit.margin_percent / 100.0));
    EXPECT_EQ(limit.limit_bytes, target.memory_bytes - limit.context_bytes - limit.margin_bytes) << name;
  }
}

TEST(MemoryLimitTest, AUserLimitOnlyLowersTheMemory) {
  const TargetGpu target = find_target_gpu("rtx4090");
  const MemoryLimit limit = compute_memory_limit(target, MemoryMode::kBalanced, 10.0, 1);
  EXPECT_EQ(limit.allowed_bytes, 10'000'000'000);
  EXPECT_EQ(limit.margin_bytes, 500'000'000) << "of what may be taken";
  EXPECT_EQ(limit.limit_bytes, 9'500'000'000 - target.context_bytes);
  EXPECT_EQ(compute_memory_limit(target, MemoryMode::kBalanced, 1000.0, 1).limit_bytes,
            compute_memory_limit(target, MemoryMode::kBalanced, std::nullopt, 1).limit_bytes);
}

/// The limit is what this process may use. Memory of other processes matters only if too little
/// remains.
TEST(MemoryLimitTest, OtherProcessesReduceTheGpuAndNotTheUserLimit) {
  TargetGpu target = find_target_gpu("h100");
  const MemoryLimit single_process = compute_memory_limit(target, MemoryMode::kBalanced, 20.0, 1);
  target.other_process_bytes = 40'000'000'000;
  const MemoryLimit shared_gpu = compute_memory_limit(target, MemoryMode::kBalanced, 20.0, 1);
  EXPECT_EQ(shared_gpu.limit_bytes, single_process.limit_bytes);
  EXPECT_EQ(shared_gpu.allowed_bytes, 20'000'000'000);
  EXPECT_EQ(compute_memory_limit(target, MemoryMode::kBalanced, std::nullopt, 1).allowed_bytes,
            target.memory_bytes - target.other_process_bytes);

  target.other_process_bytes = target.memory_bytes - 10'000'000'000;
  const MemoryLimit crowded = compute_memory_limit(target, MemoryMode::kBalanced, 20.0, 1);
  EXPECT_EQ(crowded.allowed_bytes, 10'000'000'000) << "all that is there";
  EXPECT_EQ(crowded.margin_bytes, 500'000'000);
  EXPECT_EQ(crowded.limit_bytes, 9'500'000'000 - target.context_bytes);
}

TEST(MemoryLimitTest, IsNeverNegative) {
  TargetGpu full_target = find_target_gpu("rtx4090");
  full_target.other_process_bytes = full_target.memory_bytes + 1;
  EXPECT_EQ(compute_memory_limit(full_target, MemoryMode::kBalanced, std::nullopt, 1).limit_bytes, 0);
  EXPECT_EQ(compute_memory_limit(find_target_gpu("rtx4090"), MemoryMode::kBalanced, 0.001, 8).limit_bytes, 0);
}

TEST(MemoryLimitTest, SeveralRanksNeedBuffersToCommunicate) {
  const TargetGpu target = find_target_gpu("a100-80");
  const MemoryLimit single_process = compute_memory_limit(target, MemoryMode::kBalanced, std::nullopt, 1);
  const MemoryLimit two = compute_memory_limit(target, MemoryMode::kBalanced, std::nullopt, 2);
  EXPECT_GT(two.communication_bytes, 100'000'000);
  EXPECT_LT(two.communication_bytes, 1'000'000'000);
  EXPECT_EQ(two.limit_bytes, single_process.limit_bytes - two.communication_bytes);
  EXPECT_EQ(compute_memory_limit(target, MemoryMode::kBalanced, std::nullopt, 8).communication_bytes,
            two.communication_bytes)
      << "a ring has two neighbours, however long it is";
}

TEST(PrecisionTest, OnlyGpusWithBf16UnitsSupportIt) {
  for (const auto& gpu : memory::list_gpu_specs()) {
    EXPECT_TRUE(supports_precision(gpu, engine::Precision::kFp32));
    EXPECT_EQ(supports_precision(gpu, engine::Precision::kBf16), gpu.architecture >= 80) << gpu.name;
  }
}

TEST(RecomputeOptionTest, CountsBlocksOfATower) {
  EXPECT_TRUE(RecomputeOption{}.is_auto());
  const models::RecomputeBlockCounts all{.vision = 12, .language = 30};
  EXPECT_EQ(RecomputeOption{"none"}.resolve_block_counts(all), models::RecomputeBlockCounts{});
  EXPECT_EQ(RecomputeOption{"all"}.resolve_block_counts(all), all);
  EXPECT_EQ(RecomputeOption{"5"}.resolve_block_counts(all), (models::RecomputeBlockCounts{5, 5}));
  EXPECT_EQ(RecomputeOption{"20"}.resolve_block_counts(all), (models::RecomputeBlockCounts{12, 20}))
      << "a tower has no more";
  EXPECT_EQ(RecomputeOption{"3+40"}.resolve_block_counts(all), (models::RecomputeBlockCounts{3, 30}));
  EXPECT_THROW(RecomputeOption{"auto"}.resolve_block_counts(all), InternalError);
}

}  // namespace
}  // namespace vlmtrain::planner
