#include "vlmtrain/distributed/ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <thread>

#include "distributed/thread_ranks.h"

namespace vlmtrain::distributed {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(RanksTest, ReducesTensorsAndGathersStrings) {
  run_ranks(3, [](const LaunchInfo& launch) {
    DistributedContext ranks(launch);
    const at::Tensor first = at::full({1000}, static_cast<double>(launch.rank + 1));
    const at::Tensor second = at::full({3}, static_cast<double>(10 * launch.rank));
    ranks.collectives().all_reduce_async(first);
    ranks.collectives().all_reduce_async(second);
    ranks.collectives().wait_for_reductions();
    EXPECT_TRUE(at::equal(first, at::full({1000}, 6.0)));
    EXPECT_TRUE(at::equal(second, at::full({3}, 30.0)));
    EXPECT_EQ(ranks.collectives().all_reduce_traffic().bytes, 4012);
    EXPECT_EQ(ranks.collectives().all_reduce_traffic().num_calls, 2);
    EXPECT_THAT(ranks.collectives().all_gather_strings(std::string(static_cast<size_t>(launch.rank), 'x')),
                ElementsAre("", "x", "xx"));
    EXPECT_THAT(ranks.collectives().all_gather_strings(""), ElementsAre("", "", ""));
    // A long string of one rank must not truncate the others' short ones.
    const std::string long_text(launch.rank == 1 ? 100'000 : 3, 'y');
    EXPECT_THAT(ranks.collectives().all_gather_strings(long_text),
                ElementsAre("yyy", std::string(100'000, 'y'), "yyy"));
    for (const size_t size : {119U, 120U, 121U}) {
      const std::string text(size, static_cast<char>('a' + launch.rank));
      EXPECT_THAT(ranks.collectives().all_gather_strings(text),
                  ElementsAre(std::string(size, 'a'), std::string(size, 'b'), std::string(size, 'c')));
    }
  });
}

/// Ranks (0, 1) and (2, 3) are shard groups; (0, 2) and (1, 3) are replicas.
TEST(RanksTest, ShardGroupsAndReplicas) {
  run_ranks(4, [](const LaunchInfo& launch) {
    DistributedContext ranks(launch);
    ranks.set_shard_group_size(2);
    const RankConsensus consensus(ranks.collectives());
    const int64_t shard_index = launch.rank % 2, group = launch.rank / 2;
    EXPECT_EQ(ranks.collectives().world_size(), 4);
    EXPECT_EQ(ranks.collectives().shard_group_size(), 2);

    const at::Tensor values = at::full({4}, static_cast<double>(launch.rank + 1));
    const at::Tensor shard = values.narrow(0, 2 * shard_index, 2);
    consensus.reduce_scatter_async(values);
    consensus.wait_for_reductions();
    EXPECT_TRUE(at::equal(shard, at::full({2}, group == 0 ? 3.0 : 7.0)));
    consensus.all_reduce_replicas_async(shard);
    consensus.wait_for_reductions();
    EXPECT_TRUE(at::equal(shard, at::full({2}, 10.0)));
    shard.fill_(static_cast<double>(launch.rank));
    consensus.wait_for_all_gather(consensus.all_gather_async(values));
    EXPECT_TRUE(at::equal(values.narrow(0, 0, 2), at::full({2}, 2.0 * static_cast<double>(group))));
    EXPECT_TRUE(at::equal(values.narrow(0, 2, 2), at::full({2}, 2.0 * static_cast<double>(group) + 1)));

    const at::Tensor value = at::full({1}, static_cast<double>(launch.rank));
    consensus.all_reduce_group_async(value);
    consensus.wait_for_reductions();
    EXPECT_EQ(value.item<float>(), group == 0 ? 1 : 5);
    const at::Tensor group_sum = at::full({1}, 1.0);
    consensus.all_reduce_sum_async(group_sum);
    consensus.wait_for_reductions();
    EXPECT_EQ(group_sum.item<float>(), 4);
    EXPECT_EQ(consensus.all_gather_strings(std::to_string(launch.rank)),
              (std::vector<std::string>{"0", "1", "2", "3"}));
  });
}

TEST(RanksTest, ConsensusOperations) {
  run_ranks(2, [](const LaunchInfo& launch) {
    DistributedContext ranks(launch);
    const RankConsensus consensus(ranks.collectives());
    const bool is_first = launch.rank == 0;
    EXPECT_EQ(consensus.all_reduce_max(is_first ? engine::StepStatus::kOk : engine::StepStatus::kRetrySmaller),
              engine::StepStatus::kRetrySmaller);
    EXPECT_EQ(consensus.all_reduce_max(engine::StepStatus::kOk), engine::StepStatus::kOk);
    EXPECT_TRUE(consensus.any_rank(is_first));
    EXPECT_FALSE(consensus.any_rank(false));
    EXPECT_THAT(consensus.sum_over_ranks({1.5, static_cast<double>(launch.rank)}), ElementsAre(3.0, 1.0));
    EXPECT_THAT(consensus.union_over_ranks(is_first ? std::vector<int64_t>{7, 3} : std::vector<int64_t>{5, 3}),
                ElementsAre(3, 5, 7));
    EXPECT_THAT(consensus.union_over_ranks({}), ElementsAre());
  });
}

/// The failure that a rank reports, and the time until then.
struct ObservedFailure {
  std::string text;
  ExitCode code = ExitCode::kSuccess;
  std::chrono::steady_clock::duration elapsed{};
};

class FailingRank : public testing::TestWithParam<int64_t> {};

TEST_P(FailingRank, ReportsSameFailureOnAllRanks) {
  std::mutex mutex;
  std::vector<ObservedFailure> failures;
  run_ranks(3, [&](const LaunchInfo& launch) {
    DistributedContext ranks(launch);
    ranks.collectives().all_gather_strings("begin");
    if (launch.rank == GetParam()) {
      ranks.report_failure(ExitCode::kBadData, "sample q7 cannot be read");
      return;  // destroys its group and the connections
    }
    const auto start = std::chrono::steady_clock::now();
    try {
      for (;;) ranks.collectives().all_gather_strings("step");
    } catch (const UserError& error) {
      const std::lock_guard lock(mutex);
      failures.push_back({error.what(), error.code(), std::chrono::steady_clock::now() - start});
    }
  });
  ASSERT_EQ(failures.size(), 2U);
  for (const ObservedFailure& failure : failures) {
    EXPECT_EQ(failure.text, fmt::format("rank {}: sample q7 cannot be read", GetParam()));
    EXPECT_EQ(failure.code, ExitCode::kBadData);
    EXPECT_LT(failure.elapsed, 10s);
  }
}

INSTANTIATE_TEST_SUITE_P(Each, FailingRank, testing::Values(0, 1, 2));

TEST(RanksTest, NamesMissingRanks) {
  run_ranks(4, [](const LaunchInfo& launch) {
    if (launch.rank % 2 == 1) return;
    try {
      const DistributedContext ranks(launch, {.rendezvous_timeout = 3s});
      ADD_FAILURE() << "they are not all there";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kFailed);
      EXPECT_THAT(error.what(), HasSubstr(": 1, 3; check that they were started"));
    }
  });
}

/// A program at a port that sends `greeting` to each client and closes the connection, or never
/// answers without a greeting.
class OtherServer {
 public:
  explicit OtherServer(const char* greeting = nullptr) : listener_(socket(AF_INET6, SOCK_STREAM, 0)) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    address.sin6_port = htons(static_cast<uint16_t>(port_));
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 100), 0);
    if (greeting == nullptr) return;
    thread_ = std::thread([this, greeting] {
      for (int client = accept(listener_, nullptr, nullptr); client >= 0;
           client = accept(listener_, nullptr, nullptr)) {
        EXPECT_GE(send(client, greeting, std::strlen(greeting), MSG_NOSIGNAL), -1);
        close(client);
      }
    });
  }
  ~OtherServer() {
    shutdown(listener_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    close(listener_);
  }
  OtherServer(const OtherServer&) = delete;
  OtherServer& operator=(const OtherServer&) = delete;

  int64_t port() const { return port_; }

 private:
  int64_t port_ = free_port();
  int listener_;
  std::thread thread_;
};

std::string get_connect_error(const LaunchInfo& launch, std::chrono::milliseconds rendezvous_timeout) {
  try {
    const DistributedContext ranks(launch, {.rendezvous_timeout = rendezvous_timeout});
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "they met";
  return {};
}

TEST(RanksTest, PortInUseIsRejected) {
  const OtherServer server;
  EXPECT_THAT(get_connect_error(make_launch(0, 2, server.port()), 500ms),
              HasSubstr("choose another port with MASTER_PORT"));
}

class OtherServerAtPort : public testing::TestWithParam<const char*> {};

TEST_P(OtherServerAtPort, IsNotMistakenForRank0) {
  const OtherServer server(GetParam());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(get_connect_error(make_launch(1, 2, server.port()), 3s),
              AllOf(HasSubstr("is not rank 0 of vlmtrain"), HasSubstr("choose another port with MASTER_PORT")));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

INSTANTIATE_TEST_SUITE_P(Which, OtherServerAtPort, testing::Values(nullptr, "", "SSH-2.0-OpenSSH_9.2\r\n"));

}  // namespace
}  // namespace vlmtrain::distributed
