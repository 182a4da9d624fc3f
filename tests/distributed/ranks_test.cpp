#include "vlmtrain/distributed/ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <thread>

#include "distributed/ranks_of_threads.h"
#include "vlmtrain/distributed/consensus.h"

namespace vlmtrain::distributed {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(RanksTest, SumsAndWordsAreThoseOfAll) {
  as_ranks(3, [](const Launch& launch) {
    Ranks ranks(launch);
    const at::Tensor first = at::full({1000}, static_cast<double>(launch.rank + 1));
    const at::Tensor second = at::full({3}, static_cast<double>(10 * launch.rank));
    ranks.collectives().begin_sum(first);
    ranks.collectives().begin_sum(second);
    ranks.collectives().finish_sums();
    EXPECT_TRUE(at::equal(first, at::full({1000}, 6.0)));
    EXPECT_TRUE(at::equal(second, at::full({3}, 30.0)));
    EXPECT_EQ(ranks.collectives().summed().bytes, 4012);
    EXPECT_EQ(ranks.collectives().summed().calls, 2);
    EXPECT_THAT(ranks.collectives().each(std::string(static_cast<size_t>(launch.rank), 'x')),
                ElementsAre("", "x", "xx"));
    EXPECT_THAT(ranks.collectives().each(""), ElementsAre("", "", ""));
    // Where one says much, short words of the others come whole all the same.
    const std::string much(launch.rank == 1 ? 100'000 : 3, 'y');
    EXPECT_THAT(ranks.collectives().each(much), ElementsAre("yyy", std::string(100'000, 'y'), "yyy"));
    for (const size_t size : {119U, 120U, 121U}) {
      const std::string own(size, static_cast<char>('a' + launch.rank));
      EXPECT_THAT(ranks.collectives().each(own),
                  ElementsAre(std::string(size, 'a'), std::string(size, 'b'), std::string(size, 'c')));
    }
  });
}

/// Ranks 0 and 1, 2 and 3 have parts of the same; 0 and 2, 1 and 3 have the same part.
TEST(RanksTest, GroupsHavePartsAndCopies) {
  as_ranks(4, [](const Launch& launch) {
    Ranks ranks(launch);
    ranks.share_in_groups_of(2);
    const RankConsensus consensus(ranks.collectives());
    const int64_t place = launch.rank % 2, group = launch.rank / 2;
    EXPECT_EQ(ranks.collectives().world_size(), 4);
    EXPECT_EQ(ranks.collectives().group_size(), 2);

    const at::Tensor values = at::full({4}, static_cast<double>(launch.rank + 1));
    const at::Tensor own = values.narrow(0, 2 * place, 2);
    consensus.add_up_parts(values);
    consensus.finish();
    EXPECT_TRUE(at::equal(own, at::full({2}, group == 0 ? 3.0 : 7.0)));
    consensus.add_up_copies(own);
    consensus.finish();
    EXPECT_TRUE(at::equal(own, at::full({2}, 10.0)));
    own.fill_(static_cast<double>(launch.rank));
    consensus.finish_gather(consensus.gather_parts(values));
    EXPECT_TRUE(at::equal(values.narrow(0, 0, 2), at::full({2}, 2.0 * static_cast<double>(group))));
    EXPECT_TRUE(at::equal(values.narrow(0, 2, 2), at::full({2}, 2.0 * static_cast<double>(group) + 1)));

    const at::Tensor one = at::full({1}, static_cast<double>(launch.rank));
    consensus.add_up_in_group(one);
    consensus.finish();
    EXPECT_EQ(one.item<float>(), group == 0 ? 1 : 5);
    const at::Tensor of_all = at::full({1}, 1.0);
    consensus.add_up(of_all);
    consensus.finish();
    EXPECT_EQ(of_all.item<float>(), 4);
    EXPECT_EQ(consensus.each(std::to_string(launch.rank)), (std::vector<std::string>{"0", "1", "2", "3"}));
  });
}

TEST(RanksTest, WhatTheyAgreeOn) {
  as_ranks(2, [](const Launch& launch) {
    Ranks ranks(launch);
    const RankConsensus consensus(ranks.collectives());
    const bool is_first = launch.rank == 0;
    EXPECT_EQ(consensus.worst(is_first ? engine::Verdict::kFine : engine::Verdict::kRedoSmaller),
              engine::Verdict::kRedoSmaller);
    EXPECT_EQ(consensus.worst(engine::Verdict::kFine), engine::Verdict::kFine);
    EXPECT_TRUE(consensus.any(is_first));
    EXPECT_FALSE(consensus.any(false));
    EXPECT_THAT(consensus.sum({1.5, static_cast<double>(launch.rank)}), ElementsAre(3.0, 1.0));
    EXPECT_THAT(consensus.together(is_first ? std::vector<int64_t>{7, 3} : std::vector<int64_t>{5, 3}),
                ElementsAre(3, 5, 7));
    EXPECT_THAT(consensus.together({}), ElementsAre());
  });
}

/// What this rank hears of a failure, and how long it took.
struct Heard {
  std::string text;
  ExitCode code = ExitCode::kDone;
  std::chrono::steady_clock::duration after{};
};

class FailingRank : public testing::TestWithParam<int64_t> {};

TEST_P(FailingRank, SaysWhatAllSay) {
  std::mutex mutex;
  std::vector<Heard> all;
  as_ranks(3, [&](const Launch& launch) {
    Ranks ranks(launch);
    ranks.collectives().each("begin");
    if (launch.rank == GetParam()) {
      ranks.fail(ExitCode::kBadData, "sample q7 cannot be read");
      return;  // its group goes, and with it the connections
    }
    const auto start = std::chrono::steady_clock::now();
    try {
      for (;;) ranks.collectives().each("step");
    } catch (const UserError& error) {
      const std::lock_guard lock(mutex);
      all.push_back({error.what(), error.code(), std::chrono::steady_clock::now() - start});
    }
  });
  ASSERT_EQ(all.size(), 2U);
  for (const Heard& heard : all) {
    EXPECT_EQ(heard.text, fmt::format("rank {}: sample q7 cannot be read", GetParam()));
    EXPECT_EQ(heard.code, ExitCode::kBadData);
    EXPECT_LT(heard.after, 10s);
  }
}

INSTANTIATE_TEST_SUITE_P(Each, FailingRank, testing::Values(0, 1, 2));

TEST(RanksTest, WhoDoesNotComeIsNamed) {
  as_ranks(4, [](const Launch& launch) {
    if (launch.rank % 2 == 1) return;
    try {
      const Ranks ranks(launch, {.to_meet = 3s});
      ADD_FAILURE() << "they are not all there";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kFailed);
      EXPECT_THAT(error.what(), HasSubstr(": 1, 3; were they started"));
    }
  });
}

/// Another program at a port, which says `greeting` to whoever comes and leaves; without one it never says anything.
class AnotherProgram {
 public:
  explicit AnotherProgram(const char* greeting = nullptr) : listener_(socket(AF_INET6, SOCK_STREAM, 0)) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    address.sin6_port = htons(static_cast<uint16_t>(port_));
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 100), 0);
    if (greeting == nullptr) return;
    thread_ = std::thread([this, greeting] {
      for (int guest = accept(listener_, nullptr, nullptr); guest >= 0; guest = accept(listener_, nullptr, nullptr)) {
        EXPECT_GE(send(guest, greeting, std::strlen(greeting), MSG_NOSIGNAL), -1);
        close(guest);
      }
    });
  }
  ~AnotherProgram() {
    shutdown(listener_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    close(listener_);
  }
  AnotherProgram(const AnotherProgram&) = delete;
  AnotherProgram& operator=(const AnotherProgram&) = delete;

  int64_t port() const { return port_; }

 private:
  int64_t port_ = free_port();
  int listener_;
  std::thread thread_;
};

std::string refusal_at(const Launch& launch, std::chrono::milliseconds to_meet) {
  try {
    const Ranks ranks(launch, {.to_meet = to_meet});
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "they met";
  return {};
}

TEST(RanksTest, APortInUseIsRefused) {
  const AnotherProgram other;
  EXPECT_THAT(refusal_at(launch_of(0, 2, other.port()), 500ms), HasSubstr("choose another port with MASTER_PORT"));
}

class AnotherProgramAtThePort : public testing::TestWithParam<const char*> {};

TEST_P(AnotherProgramAtThePort, IsNotTakenForRank0) {
  const AnotherProgram other(GetParam());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(refusal_at(launch_of(1, 2, other.port()), 3s),
              AllOf(HasSubstr("is no rank 0 of vlmtrain"), HasSubstr("choose another port with MASTER_PORT")));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

INSTANTIATE_TEST_SUITE_P(Which, AnotherProgramAtThePort, testing::Values(nullptr, "", "SSH-2.0-OpenSSH_9.2\r\n"));

}  // namespace
}  // namespace vlmtrain::distributed
