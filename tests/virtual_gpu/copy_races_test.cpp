// The detector of races of copies, by calls of the CUDA runtime with planted faults.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "virtual_gpu/cuda_call.h"
#include "virtual_gpu/virtual_gpu.h"

namespace vlmtrain {
namespace {

constexpr size_t kBytes = 1 << 20;
constexpr int kHostToDevice = 1;
constexpr unsigned kNonBlocking = 1, kWithoutTiming = 2;
void* const kDefaultStream = nullptr;

/// A slot that a side stream fills from page-locked memory and the default stream reads.
class CopyRaceTest : public testing::Test {
 protected:
  CopyRaceTest() {
    EXPECT_EQ(call("cudaMalloc", &slot_, kBytes), kSuccess);
    EXPECT_EQ(call("cudaMallocHost", &host_, kBytes), kSuccess);
    EXPECT_EQ(call("cudaStreamCreateWithFlags", &side_stream_, kNonBlocking), kSuccess);
    for (void** event : {&copied_, &free_})
      EXPECT_EQ(call("cudaEventCreateWithFlags", event, kWithoutTiming), kSuccess);
    virtual_gpu().reset();
  }
  ~CopyRaceTest() override {
    end_use();
    call("cudaFree", slot_);
    call("cudaFreeHost", host_);
    for (void* const event : {copied_, free_}) call("cudaEventDestroy", event);
    call("cudaStreamDestroy", side_stream_);
  }

  void copy() {
    call("cudaMemcpyAsync", slot_, static_cast<const void*>(host_), kBytes, kHostToDevice, side_stream_);
    call("cudaEventRecord", copied_, side_stream_);
  }
  void wait_for_copy() { call("cudaStreamWaitEvent", kDefaultStream, copied_, 0U); }
  void begin_use() { virtual_gpu().begin_use(slot_, kBytes); }
  void end_use() { virtual_gpu().end_use(slot_); }
  void record_free() { call("cudaEventRecord", free_, kDefaultStream); }
  void wait_until_free() { call("cudaStreamWaitEvent", side_stream_, free_, 0U); }
  void* copied() const { return copied_; }
  static uint64_t races() { return counters().num_copy_races; }

 private:
  void* slot_ = nullptr;
  void* host_ = nullptr;
  void* side_stream_ = nullptr;
  void* copied_ = nullptr;
  void* free_ = nullptr;
};

TEST_F(CopyRaceTest, OrderedCopiesAreNoRaces) {
  for (int round = 0; round < 3; ++round) {
    record_free();
    wait_until_free();
    copy();
    wait_for_copy();
    begin_use();
    end_use();
  }
  EXPECT_EQ(races(), 0U);
}

TEST_F(CopyRaceTest, EarlyReadIsFound) {
  copy();
  begin_use();
  EXPECT_EQ(races(), 1U);
}

TEST_F(CopyRaceTest, ReadAfterAnOlderCopyIsFound) {
  copy();
  wait_for_copy();
  copy();
  begin_use();
  EXPECT_EQ(races(), 1U);
}

TEST_F(CopyRaceTest, EarlyOverwriteIsFound) {
  copy();
  wait_for_copy();
  begin_use();
  record_free();
  wait_until_free();
  copy();
  EXPECT_EQ(races(), 1U);
}

TEST_F(CopyRaceTest, EarlyReuseIsFound) {
  copy();
  wait_for_copy();
  begin_use();
  record_free();  // before the last use has ended
  end_use();
  wait_until_free();
  copy();
  EXPECT_EQ(races(), 1U);
}

TEST_F(CopyRaceTest, TheHostOrdersWhatItWaitsFor) {
  copy();
  call("cudaEventSynchronize", copied());
  begin_use();
  end_use();
  call("cudaDeviceSynchronize");
  copy();
  EXPECT_EQ(races(), 0U);
}

}  // namespace
}  // namespace vlmtrain
