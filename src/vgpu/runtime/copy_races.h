#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string_view>

namespace vlmtrain::vgpu {

/// A detector of races between copies from and to page-locked host memory, and between these copies and
/// kernels. Streams, events and the host have vector clocks (Mattern 1989, "Virtual Time and Global
/// States of Distributed Systems"): work A is before work B if B's clock has A's time on A's stream.
///
/// Kernels do not tell what they read. Instead, the program announces the ranges of device memory that the
/// work of a stream uses from now on (VirtualGpuInterface::begin_use, end_use). Errors, each reported on
/// stderr and counted in GpuCounters::num_copy_races:
/// - early read: a range is used, or copied, on a stream that is not after the copy into it
/// - early overwrite: a copy into a range that is in use
/// - early reuse: a copy into a range on a stream that is not after the end of its last use or after the last
///   copy out of it; or a use that is not after this copy
///
/// Thread-safe.
class CopyRaceDetector {
 public:
  /// Records a copy between host memory and device memory. The host's side is null if it is pageable, so
  /// that the host waits for the copy.
  void record_copy(const void* to, const void* from, uint64_t bytes, cudaStream_t stream);
  void record_event(cudaEvent_t event, cudaStream_t stream);
  /// Makes the stream wait for the event; an event that was not recorded is complete.
  void record_wait(cudaStream_t stream, cudaEvent_t event);
  void remove(cudaEvent_t event);
  // The host waits for the event, for the stream, or for all streams.
  void synchronize(cudaEvent_t event);
  void synchronize(cudaStream_t stream);
  void synchronize_all();

  /// Announces that work on the default stream uses device memory from now on, until end_use().
  void begin_use(const void* first, uint64_t bytes);
  void end_use(const void* first);

 private:
  /// Time by stream: the number of its copies and ends of uses, which are all that others wait for.
  using VectorClock = std::map<cudaStream_t, uint64_t>;
  /// A moment on a stream.
  struct Work {
    cudaStream_t stream = nullptr;
    uint64_t time = 0;
  };
  /// A copy into or out of a range.
  struct Copy {
    uint64_t bytes = 0;
    Work work;
  };
  struct Use {
    uint64_t bytes = 0;
    bool is_active = false;
    Work last_work;
  };

  static void merge(VectorClock& clock, const VectorClock& other);
  Work add_work(cudaStream_t stream);
  bool follows(cudaStream_t stream, const Work& work);
  static void report(std::string_view race, uintptr_t first, uint64_t bytes);
  /// Calls `visit` with each entry of `ranges` that overlaps, and removes those for which it returns true.
  template <class Range, class Visit>
  static void visit_overlaps(std::map<uintptr_t, Range>& ranges, uintptr_t first, uint64_t bytes, const Visit& visit);

  std::mutex mutex_;
  std::map<cudaStream_t, VectorClock> clocks_;
  std::map<cudaEvent_t, VectorClock> event_clocks_;
  VectorClock host_clock_;
  // The last copies into ranges and out of them, and the last uses, by address.
  std::map<uintptr_t, Copy> copies_in_, copies_out_;
  std::map<uintptr_t, Use> uses_;
};

/// Returns the detector of this process.
CopyRaceDetector& copy_race_detector();

}  // namespace vlmtrain::vgpu
