#include "vlmtrain/report/environment.h"

#include <stdlib.h>
#include <unistd.h>

#include <c10/core/Device.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "vlmtrain/report/metrics.h"

namespace vlmtrain::report {
namespace {

TEST(EnvironmentTest, DescribesThisProcess) {
  setenv("SLURM_JOB_ID", "4711", 1);
  const Environment environment = Environment::collect(at::kCPU);
  unsetenv("SLURM_JOB_ID");
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  EXPECT_EQ(environment.host, host);
  EXPECT_THAT(environment.os_kernel, testing::StartsWith("Linux "));
  EXPECT_GE(environment.num_cpu_cores, 1);
  EXPECT_GT(environment.memory_bytes, int64_t{1} << 28);
  EXPECT_LT(environment.memory_limit_bytes.value_or(0), environment.memory_bytes);
  EXPECT_FALSE(environment.gpu);
  EXPECT_THAT(environment.libtorch_version, testing::StartsWith("2."));
  EXPECT_THAT(environment.vlmtrain_version, testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(environment.command.front(), testing::HasSubstr("report_tests"));
  EXPECT_NEAR(environment.start_time, get_unix_seconds(), 60);
  EXPECT_EQ(environment.slurm_job_id, "4711");
}

TEST(EnvironmentTest, WritesJson) {
  Environment environment;
  environment.host = "node-3";
  environment.command = {"vlmtrain", "--config", "a b.yaml"};
  const auto json = nlohmann::json::parse(environment.to_json());
  EXPECT_EQ(json["host"], "node-3");
  EXPECT_EQ(json["command"][2], "a b.yaml");
  EXPECT_TRUE(json["gpu"].is_null());
  EXPECT_TRUE(json["memory_limit_bytes"].is_null());
  environment.gpu = GpuDescription{.name = "NVIDIA H100", .architecture = 90, .total_bytes = 80, .driver = "550.54"};
  EXPECT_EQ(nlohmann::json::parse(environment.to_json())["gpu"]["architecture"], 90);
}

}  // namespace
}  // namespace vlmtrain::report
