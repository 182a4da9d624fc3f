// The detector of races of copies, by calls of the CUDA runtime with planted faults.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "virtual_gpu/cuda_call.h"
#include "virtual_gpu/virtual_gpu.h"

namespace vlmtrain {
namespace {

constexpr size_t kBytes = 1 << 20;
constexpr int kHostToDevice = 1, kDeviceToHost = 2;
constexpr unsigned kNonBlocking = 1, kWithoutTiming = 2;
void* const kDefaultStream = nullptr;

/// A slot that side streams fill from page-locked memory and copy there, and the default stream uses.
class CopyRaceTest : public testing::Test {
 protected:
  CopyRaceTest() {
    EXPECT_EQ(call("cudaMalloc", &slot_, kBytes), kSuccess);
    EXPECT_EQ(call("cudaMallocHost", &host_, kBytes), kSuccess);
    for (void** stream : {&side_stream_, &out_stream_})
      EXPECT_EQ(call("cudaStreamCreateWithFlags", stream, kNonBlocking), kSuccess);
    for (void** event : {&copied_, &copied_out_, &free_})
      EXPECT_EQ(call("cudaEventCreateWithFlags", event, kWithoutTiming), kSuccess);
    virtual_gpu().reset();
  }
  ~CopyRaceTest() override {
    end_use();
    call("cudaDeviceSynchronize");  // other tests get the same addresses
    call("cudaFree", slot_);
    call("cudaFreeHost", host_);
    for (void* const event : {copied_, copied_out_, free_}) call("cudaEventDestroy", event);
    for (void* const stream : {side_stream_, out_stream_}) call("cudaStreamDestroy", stream);
  }

  void copy() {
    call("cudaMemcpyAsync", slot_, static_cast<const void*>(host_), kBytes, kHostToDevice, side_stream_);
    call("cudaEventRecord", copied_, side_stream_);
  }
  void copy_to_host(bool waits = false) {
    record_free();
    if (waits) call("cudaStreamWaitEvent", out_stream_, free_, 0U);
    call("cudaMemcpyAsync", host_, static_cast<const void*>(slot_), kBytes, kDeviceToHost, out_stream_);
    call("cudaEventRecord", copied_out_, out_stream_);
  }
  void wait_for_copy_to_host() { call("cudaStreamWaitEvent", kDefaultStream, copied_out_, 0U); }
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
  void* side_stream_ = nullptr;  // to the device
  void* out_stream_ = nullptr;   // to the host
  void* copied_ = nullptr;
  void* copied_out_ = nullptr;
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

TEST_F(CopyRaceTest, ReuseDuringACopyToTheHostIsFound) {
  copy_to_host();
  begin_use();
  EXPECT_EQ(races(), 1U);
  end_use();
  wait_for_copy_to_host();
  begin_use();
  EXPECT_EQ(races(), 1U);
}

TEST_F(CopyRaceTest, EarlyReadOfHostMemoryIsFound) {
  copy_to_host();
  copy();  // back, on another stream
  EXPECT_EQ(races(), 2U) << "the host's values are not there, and the slot is read still";
}

TEST_F(CopyRaceTest, EarlyReuseOfHostMemoryIsFound) {
  copy();
  wait_for_copy();
  begin_use();
  end_use();
  copy_to_host();
  EXPECT_EQ(races(), 2U) << "its stream waits neither for the values nor for the memory";
}

TEST_F(CopyRaceTest, ThereAndBackInOrderIsNoRace) {
  for (int round = 0; round < 3; ++round) {
    copy_to_host(/*waits=*/true);
    wait_for_copy_to_host();
    begin_use();
    end_use();
    record_free();
    wait_until_free();
    copy();
    wait_for_copy();
    begin_use();
    end_use();
  }
  EXPECT_EQ(races(), 0U);
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
