#include "vlmtrain/base/apart.h"

#include <stdlib.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>

namespace vlmtrain {
namespace {

constexpr double kLong = 60;

TEST(ApartTest, GivesWhatWasWritten) {
  const auto result = do_apart([] { std::printf("so it is\n"); }, kLong);
  EXPECT_TRUE(result.is_done());
  EXPECT_EQ(result.out, "so it is\n");
}

TEST(ApartTest, GivesMoreThanAPipeHolds) {
  const std::string text(1'000'000, 'x');
  EXPECT_EQ(do_apart([&] { std::fputs(text.c_str(), stdout); }, kLong).out, text);
}

TEST(ApartTest, LeavesThisProcessAsItIs) {
  int number = 1;
  do_apart(
      [&] {
        number = 2;
        setenv("VLMTRAIN_APART_TEST", "set", 1);
      },
      kLong);
  EXPECT_EQ(number, 1);
  EXPECT_EQ(getenv("VLMTRAIN_APART_TEST"), nullptr);
}

TEST(ApartTest, ACrashIsAnAnswer) {
  const auto result = do_apart([] { std::raise(SIGILL); }, kLong);
  EXPECT_FALSE(result.is_done());
  EXPECT_EQ(result.signal, SIGILL);
  EXPECT_THAT(result.ending(), testing::HasSubstr("signal 4 (Illegal instruction)"));
}

TEST(ApartTest, AnExitIsAnAnswer) {
  const auto result = do_apart([] { _exit(3); }, kLong);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_FALSE(result.is_done());
  EXPECT_THAT(result.ending(), testing::HasSubstr("exit code 3"));
}

TEST(ApartTest, WhatHangsIsEnded) {
  const auto start = std::chrono::steady_clock::now();
  const auto result = do_apart(
      [] {
        std::printf("begun\n");
        std::fflush(stdout);
        for (;;) pause();
      },
      /*most_seconds=*/1);
  EXPECT_TRUE(result.late);
  EXPECT_FALSE(result.is_done());
  EXPECT_EQ(result.out, "begun\n");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

}  // namespace
}  // namespace vlmtrain
