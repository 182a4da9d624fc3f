#include "vlmtrain/data/loader/sample_stream.h"

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <new>

#include "data/fake_processor.h"

namespace vlmtrain::data {
namespace {

Sample make_numbered_sample(int64_t index) {
  Sample sample;
  sample.index = index;
  return sample;
}

TEST(SampleStream, IsOrderedAndEnds) {
  for (const int64_t workers : {1, 2, 5}) {
    SampleStream stream(make_sequential_generator(200),
                        [](int64_t index) {
                          sleep_briefly(index);
                          return make_numbered_sample(index);
                        },
                        {.num_workers = workers, .max_prefetch_samples = 7});
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

TEST(SampleStream, EmptySequenceEndsAtOnce) {
  SampleStream stream(make_sequential_generator(0), make_numbered_sample,
                      {.num_workers = 3, .max_prefetch_samples = 3});
  EXPECT_FALSE(stream.next().has_value());
}

TEST(SampleStream, ExceptionsKeepTheirPosition) {
  SampleStream stream(make_sequential_generator(6),
                      [](int64_t index) -> Sample {
                        if (index == 1) throw_too_long(index);
                        if (index == 3) throw 42;
                        if (index == 4) throw std::bad_alloc();
                        sleep_briefly(index);
                        return make_numbered_sample(index);
                      },
                      {.num_workers = 3, .max_prefetch_samples = 6});
  const auto get_next_error = [&stream] { return stream.next()->error; };
  EXPECT_FALSE(get_next_error());
  EXPECT_THROW(std::rethrow_exception(get_next_error()), SampleError);
  EXPECT_FALSE(get_next_error());
  EXPECT_THROW(std::rethrow_exception(get_next_error()), int);
  EXPECT_THROW(std::rethrow_exception(get_next_error()), std::bad_alloc);
  EXPECT_FALSE(get_next_error());
  EXPECT_FALSE(stream.next().has_value());
}

TEST(SampleStream, FailingGeneratorEndsTheSequenceWithItsError) {
  SampleStream stream(
      [source = make_sequential_generator(3)]() mutable {
        auto index = source();
        if (!index) throw std::length_error("source");
        return index;
      },
      make_numbered_sample, {.num_workers = 2, .max_prefetch_samples = 2});
  for (int64_t index = 0; index < 3; ++index) EXPECT_EQ(stream.next()->index, index);
  EXPECT_THROW(stream.next(), std::length_error);
}

TEST(SampleStream, PrefetchesNoMoreThanRequested) {
  std::atomic<int64_t> num_started{0};
  std::latch four(4);
  SampleStream stream(make_sequential_generator(1000),
                      [&](int64_t index) {
                        if (++num_started <= 4) four.count_down();
                        return make_numbered_sample(index);
                      },
                      {.num_workers = 3, .max_prefetch_samples = 4});
  four.wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(num_started, 4);
  for (int64_t num_taken = 1; num_taken <= 50; ++num_taken) {
    stream.next();
    EXPECT_LE(num_started, 4 + num_taken);
  }
}

TEST(SampleStream, StopsAtAnyMoment) {
  for (int64_t repetition = 0; repetition < 500; ++repetition) {
    SampleStream stream(make_sequential_generator(repetition % 2 == 0 ? 1000000 : 6),
                        [](int64_t index) {
                          sleep_briefly(index);
                          return make_numbered_sample(index);
                        },
                        {.num_workers = 1 + repetition % 4, .max_prefetch_samples = 1 + repetition % 7});
    for (int64_t num_taken = 0; num_taken < repetition % 6; ++num_taken) stream.next();
    if (repetition % 5 == 0) sleep_briefly(repetition);
  }
}

TEST(SampleStream, StartsNoSampleAfterAStop) {
  std::atomic<int64_t> num_started{0};
  std::latch busy(2);
  std::latch may_continue(1);
  std::optional<SampleStream> stream(
      std::in_place, make_sequential_generator(1000),
      [&](int64_t index) {
        if (++num_started <= 2) busy.count_down();
        may_continue.wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return make_numbered_sample(index);
      },
      SampleStream::Settings{.num_workers = 2, .max_prefetch_samples = 100});
  busy.wait();
  may_continue.count_down();
  stream.reset();
  EXPECT_EQ(num_started, 2);
}

TEST(SampleStream, AtenUsesOneThreadPerWorker) {
  at::set_num_threads(2);
  SampleStream stream(make_sequential_generator(4),
                      [](int64_t index) {
                        at::ones({1 << 20}).mul_(2);  // far above the grain size
                        Sample sample = make_numbered_sample(index);
                        sample.num_images = at::get_num_threads();
                        return sample;
                      },
                      {.num_workers = 2, .max_prefetch_samples = 4});
  while (const auto item = stream.next()) EXPECT_EQ(item->sample.num_images, 1);
  EXPECT_EQ(at::get_num_threads(), 2);
  int main_thread_count = 0;
  std::thread([&main_thread_count] { main_thread_count = at::get_num_threads(); }).join();
  EXPECT_EQ(main_thread_count, 2);
}

Sample make_sample_of_size(int64_t bytes) {
  Sample sample;
  sample.pixel_values = at::ones({1, bytes}, at::kByte);
  return sample;
}

/// Takes all samples of `bytes` each slowly. Returns the maximum number of samples that were ready.
int64_t measure_max_ahead(int64_t workers, int64_t bytes, int64_t prefetch_bytes) {
  std::atomic<int64_t> num_made{0};
  SampleStream stream(make_sequential_generator(40),
                      [&](int64_t) {
                        ++num_made;
                        return make_sample_of_size(bytes);
                      },
                      {.num_workers = workers, .max_prefetch_samples = 20, .prefetch_bytes = prefetch_bytes});
  int64_t max_ahead = 0;
  for (int64_t num_taken = 0; num_taken < 40; ++num_taken) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    max_ahead = std::max(max_ahead, num_made - num_taken);
    EXPECT_TRUE(stream.next().has_value());
  }
  EXPECT_FALSE(stream.next().has_value());
  EXPECT_EQ(stream.was_memory_limited(), prefetch_bytes > 0 && prefetch_bytes < 20 * bytes);
  return max_ahead;
}

TEST(SampleStream, LimitsPrefetchedBytes) {
  EXPECT_EQ(measure_max_ahead(1, 1000, 0), 20);
  EXPECT_EQ(measure_max_ahead(1, 1000, 20'000), 20);
  EXPECT_EQ(measure_max_ahead(1, 1000, 5500), 5);
  // The size of the first samples, one on each worker, is unknown until they are processed.
  EXPECT_LE(measure_max_ahead(3, 1000, 5500), 5);
}

TEST(SampleStream, MakesTheNextSampleRegardlessOfSize) {
  EXPECT_EQ(measure_max_ahead(1, 1000, 1), 1);
  EXPECT_LE(measure_max_ahead(4, 1000, 1), 4);
}

}  // namespace
}  // namespace vlmtrain::data
