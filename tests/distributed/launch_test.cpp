#include "vlmtrain/distributed/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "vlmtrain/base/error.h"

namespace vlmtrain::distributed {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

EnvironmentLookup make_environment(Variables variables) {
  return [variables = std::move(variables)](const char* name) {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  };
}

std::string get_error(Variables variables) {
  try {
    parse_launch_info(make_environment(std::move(variables)));
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  return "none";
}

TEST(LaunchTest, ParsesTorchrunVariables) {
  EXPECT_EQ(parse_launch_info(make_environment({{"RANK", "5"},
                                                {"WORLD_SIZE", "8"},
                                                {"LOCAL_RANK", "1"},
                                                {"MASTER_ADDR", "gpu1"},
                                                {"MASTER_PORT", "29500"}})),
            (LaunchInfo{.rank = 5,
                        .world_size = 8,
                        .local_rank = 1,
                        .master_address = "gpu1",
                        .master_port = 29500,
                        .launcher = "torchrun"}));
}

TEST(LaunchTest, ParsesSrunVariables) {
  const Variables task{{"SLURM_JOB_ID", "77"},      {"SLURM_STEP_ID", "2"}, {"SLURM_STEP_NUM_TASKS", "4"},
                       {"SLURM_PROCID", "3"},       {"SLURM_LOCALID", "1"}, {"SLURM_STEP_NODELIST", "gpu[08-09,12]"},
                       {"SLURM_NODELIST", "other"}, {"SLURM_NTASKS", "4"}};
  const auto launch = parse_launch_info(make_environment(task));
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->rank, 3);
  EXPECT_EQ(launch->world_size, 4);
  EXPECT_EQ(launch->local_rank, 1);
  EXPECT_EQ(launch->master_address, "gpu08");
  EXPECT_EQ(launch->launcher, "srun");
  auto next_step = task;
  next_step["SLURM_STEP_ID"] = "3";
  EXPECT_NE(parse_launch_info(make_environment(next_step))->master_port, launch->master_port)
      << "a step may begin while another one ends";
  auto with_port = task;
  with_port["MASTER_PORT"] = "4000";
  EXPECT_EQ(parse_launch_info(make_environment(with_port))->master_port, 4000);
}

TEST(LaunchTest, ReturnsNothingForSingleProcess) {
  for (const Variables& variables :
       {Variables{},
        {{"WORLD_SIZE", "1"}, {"RANK", "0"}},
        {{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}},
        // A batch script of a job with several tasks.
        {{"SLURM_JOB_ID", "3"}, {"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "8"}},
        {{"RANK", "major"}, {"WORLD_SIZE", ""}}}) {
    EXPECT_EQ(parse_launch_info(make_environment(variables)), std::nullopt);
  }
}

TEST(LaunchTest, RejectsMissingRendezvous) {
  EXPECT_THAT(get_error({{"WORLD_SIZE", "2"}, {"RANK", "0"}}), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(get_error({{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not set"));
  EXPECT_THAT(get_error({{"RANK", "1"}}), HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(get_error({{"WORLD_SIZE", "2"}, {"RANK", "abc"}}), HasSubstr("RANK=abc: must be a number from 0 to 1"));
  for (const char* size : {"0", "-1", "99999999999"}) {
    EXPECT_THAT(get_error({{"WORLD_SIZE", size}, {"RANK", "0"}}),
                HasSubstr("must be a number of ranks from 1 to 4096"));
  }
  const Variables two_ranks{{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_ADDR", "a"}};
  EXPECT_THAT(get_error(two_ranks), HasSubstr("MASTER_PORT is not set; set it to a free port"));
  for (const char* port : {"0", "65536", "x"}) {
    auto variables = two_ranks;
    variables["MASTER_PORT"] = port;
    EXPECT_THAT(get_error(variables), HasSubstr("must be a number from 1 to 65535"));
  }
  auto out_of_range = two_ranks;
  out_of_range["MASTER_PORT"] = "1";
  out_of_range["RANK"] = "2";
  EXPECT_THAT(get_error(out_of_range), HasSubstr("the rank must be from 0 to 1"));
  EXPECT_THAT(get_error({{"OMPI_COMM_WORLD_SIZE", "4"}}), HasSubstr("--nproc-per-node 4"));
  EXPECT_THAT(get_error({{"PMI_SIZE", "2"}}), HasSubstr("mpirun"));
}

TEST(FirstHostTest, ParsesSlurmHostLists) {
  EXPECT_EQ(parse_first_host("gpu1"), "gpu1");
  EXPECT_EQ(parse_first_host("gpu1,gpu2"), "gpu1");
  EXPECT_EQ(parse_first_host("gpu[003-007,010],login1"), "gpu003");
  EXPECT_EQ(parse_first_host("gpu[7]"), "gpu7");
  EXPECT_EQ(parse_first_host("rack[1-2]node[3-4]"), "rack1node3");
  EXPECT_EQ(parse_first_host("a[1,3].x"), "a1.x");
}

}  // namespace
}  // namespace vlmtrain::distributed
