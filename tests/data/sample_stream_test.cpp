#include "vlmtrain/data/sample_stream.h"

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <new>

#include "data/fake_processor.h"

namespace vlmtrain::data {
namespace {

Sample numbered(int64_t index) {
  Sample sample;
  sample.index = index;
  return sample;
}

TEST(SampleStream, ComesInOrderAndEnds) {
  for (const int64_t workers : {1, 2, 5}) {
    SampleStream stream(file_order(200),
                        [](int64_t index) {
                          stagger(index);
                          return numbered(index);
                        },
                        {.workers = workers, .ahead = 7});
    for (int64_t index = 0; index < 200; ++index) {
      const auto item = stream.next();
      ASSERT_TRUE(item.has_value());
      ASSERT_EQ(item->index, index);
      ASSERT_EQ(item->sample.index, index);
      ASSERT_FALSE(item->error);
    }
    EXPECT_FALSE(stream.next().has_value());
    EXPECT_FALSE(stream.next().has_value());
  }
}

TEST(SampleStream, AnEmptySequenceEndsAtOnce) {
  SampleStream stream(file_order(0), numbered, {.workers = 3, .ahead = 3});
  EXPECT_FALSE(stream.next().has_value());
}

TEST(SampleStream, ExceptionsOfAnyTypeTravelWithTheirPlace) {
  SampleStream stream(file_order(6),
                      [](int64_t index) -> Sample {
                        if (index == 1) reject(index);
                        if (index == 3) throw 42;
                        if (index == 4) throw std::bad_alloc();
                        stagger(index);
                        return numbered(index);
                      },
                      {.workers = 3, .ahead = 6});
  const auto error_of = [&stream] { return stream.next()->error; };
  EXPECT_FALSE(error_of());
  EXPECT_THROW(std::rethrow_exception(error_of()), SampleError);
  EXPECT_FALSE(error_of());
  EXPECT_THROW(std::rethrow_exception(error_of()), int);
  EXPECT_THROW(std::rethrow_exception(error_of()), std::bad_alloc);
  EXPECT_FALSE(error_of());
  EXPECT_FALSE(stream.next().has_value());
}

TEST(SampleStream, AFailingSourceEndsTheSequenceWithItsError) {
  SampleStream stream(
      [source = file_order(3)]() mutable {
        auto index = source();
        if (!index) throw std::length_error("source");
        return index;
      },
      numbered, {.workers = 2, .ahead = 2});
  for (int64_t index = 0; index < 3; ++index) EXPECT_EQ(stream.next()->index, index);
  EXPECT_THROW(stream.next(), std::length_error);
}

TEST(SampleStream, LooksAheadNoFurtherThanAsked) {
  std::atomic<int64_t> begun{0};
  std::latch four(4);
  SampleStream stream(file_order(1000),
                      [&](int64_t index) {
                        if (++begun <= 4) four.count_down();
                        return numbered(index);
                      },
                      {.workers = 3, .ahead = 4});
  four.wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(begun, 4);
  for (int64_t taken = 1; taken <= 50; ++taken) {
    stream.next();
    EXPECT_LE(begun, 4 + taken);
  }
}

TEST(SampleStream, StopsAtAnyMoment) {
  for (int64_t repetition = 0; repetition < 500; ++repetition) {
    SampleStream stream(file_order(repetition % 2 == 0 ? 1000000 : 6),
                        [](int64_t index) {
                          stagger(index);
                          return numbered(index);
                        },
                        {.workers = 1 + repetition % 4, .ahead = 1 + repetition % 7});
    for (int64_t taken = 0; taken < repetition % 6; ++taken) stream.next();
    if (repetition % 5 == 0) stagger(repetition);
  }
}

TEST(SampleStream, AfterAStopNoSampleIsBegun) {
  std::atomic<int64_t> begun{0};
  std::latch busy(2);
  std::latch go_on(1);
  std::optional<SampleStream> stream(
      std::in_place, file_order(1000),
      [&](int64_t index) {
        if (++begun <= 2) busy.count_down();
        go_on.wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return numbered(index);
      },
      SampleStream::Settings{.workers = 2, .ahead = 100});
  busy.wait();
  go_on.count_down();
  stream.reset();
  EXPECT_EQ(begun, 2);
}

TEST(SampleStream, AtenStaysOnTheWorkersThread) {
  at::set_num_threads(2);
  SampleStream stream(file_order(4),
                      [](int64_t index) {
                        at::ones({1 << 20}).mul_(2);  // far above the grain size
                        Sample sample = numbered(index);
                        sample.images = at::get_num_threads();
                        return sample;
                      },
                      {.workers = 2, .ahead = 4});
  while (const auto item = stream.next()) EXPECT_EQ(item->sample.images, 1);
  EXPECT_EQ(at::get_num_threads(), 2);
  int later = 0;
  std::thread([&later] { later = at::get_num_threads(); }).join();
  EXPECT_EQ(later, 2);
}

Sample of_bytes(int64_t bytes) {
  Sample sample;
  sample.pixel_values = at::ones({1, bytes}, at::kByte);
  return sample;
}

/// Takes all samples of `bytes` each, slowly; returns the most that were made and not yet taken.
int64_t most_ahead(int64_t workers, int64_t bytes, int64_t bytes_ahead) {
  std::atomic<int64_t> made{0};
  SampleStream stream(file_order(40),
                      [&](int64_t) {
                        ++made;
                        return of_bytes(bytes);
                      },
                      {.workers = workers, .ahead = 20, .bytes_ahead = bytes_ahead});
  int64_t most = 0;
  for (int64_t taken = 0; taken < 40; ++taken) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    most = std::max(most, made - taken);
    EXPECT_TRUE(stream.next().has_value());
  }
  EXPECT_FALSE(stream.next().has_value());
  EXPECT_EQ(stream.was_held_back(), bytes_ahead > 0 && bytes_ahead < 20 * bytes);
  return most;
}

TEST(SampleStream, HoldsNoMoreBytesThanItMay) {
  EXPECT_EQ(most_ahead(1, 1000, 0), 20);
  EXPECT_EQ(most_ahead(1, 1000, 20'000), 20);
  EXPECT_EQ(most_ahead(1, 1000, 5500), 5);
  // Nobody knows how large the first ones are until they are made, one by each worker.
  EXPECT_LE(most_ahead(3, 1000, 5500), 5);
}

TEST(SampleStream, MakesTheNextSampleHoweverLargeItIs) {
  EXPECT_EQ(most_ahead(1, 1000, 1), 1);
  EXPECT_LE(most_ahead(4, 1000, 1), 4);
}

}  // namespace
}  // namespace vlmtrain::data
