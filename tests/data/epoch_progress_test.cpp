#include "vlmtrain/data/index/ledger.h"

#include <gtest/gtest.h>

#include "data/fake_processor.h"

namespace vlmtrain::data {
namespace {

TEST(EpochProgress, IsTheShareOfUsableSamples) {
  const Ledger ledger("train.json", 8);
  const SampleOrder sample_order(8, 3);
  EpochProgress progress(ledger, sample_order);
  EXPECT_DOUBLE_EQ(progress.at(cursor_at(0, 0)), 0);
  EXPECT_DOUBLE_EQ(progress.at(cursor_at(0, 2)), 0.25);
  EXPECT_DOUBLE_EQ(progress.at(cursor_at(2, 6)), 2.75);
  EXPECT_DOUBLE_EQ(progress.at(cursor_at(1, 4)), 1.5) << "back again";
}

TEST(EpochProgress, AnEpochEndsWithItsLastUsableSample) {
  constexpr int64_t kSamples = 20;
  Ledger ledger("train.json", kSamples);
  const auto order = shuffle_epoch(kSamples, 7, 1);
  for (const size_t i : {2U, 9U, 18U, 19U}) ledger.mark_dropped(order[i], "s", "too long", "is too long");
  const SampleOrder sample_order(kSamples, 7);
  EpochProgress progress(ledger, sample_order);
  EXPECT_DOUBLE_EQ(progress.at(cursor_at(1, 2)), 1 + 2.0 / 16);
  EXPECT_DOUBLE_EQ(progress.at(cursor_at(1, 3)), 1 + 2.0 / 16) << "a dropped sample is no part of the epoch";
  EXPECT_DOUBLE_EQ(progress.at(cursor_at(1, 17)), 1 + 15.0 / 16);
  EXPECT_DOUBLE_EQ(progress.at(cursor_at(1, 18)), 2) << "what follows is dropped";
  EXPECT_DOUBLE_EQ(progress.at(cursor_at(2, 0)), 2);
}

TEST(EpochProgress, FollowsSamplesDroppedDuringTheEpoch) {
  Ledger ledger("train.json", 10);
  const SampleOrder sample_order(10, 7);
  EpochProgress progress(ledger, sample_order);
  const auto order = shuffle_epoch(10, 7, 0);
  EXPECT_DOUBLE_EQ(progress.at(cursor_at(0, 5)), 0.5);
  ledger.mark_dropped(order[4], "s", "does not fit into memory", "is too large");
  EXPECT_DOUBLE_EQ(progress.at(cursor_at(0, 5)), 4.0 / 9);
  ledger.mark_dropped(order[9], "s", "unreadable image", "is cut off");
  EXPECT_DOUBLE_EQ(progress.at(cursor_at(0, 9)), 1);
}

}  // namespace
}  // namespace vlmtrain::data
