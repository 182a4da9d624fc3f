#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vlmtrain::report {

/// The kinds of events in events.jsonl.
enum class EventKind : uint8_t {
  kOomSplit,          ///< out of memory: the step was repeated in smaller micro-batches
  kForecastSplit,     ///< the look-ahead predicted that memory would not suffice
  kAnomaly,           ///< a loss or gradient norm that is not finite or an outlier
  kSkippedStep,       ///< no update was applied
  kMemoryGrowth,      ///< memory grows from step to step
  kMemoryFull,        ///< hardly any memory is free
  kCacheEmptied,      ///< the allocator released unused memory
  kLookAhead,         ///< the look-ahead started, ended, or was far from the measured memory
  kResumed,           ///< the run continues after `step`
  kChanged,           ///< the following steps use other settings, which the message names
  kFewerPredictions,  ///< samples are answered less often than set, since answers took long
  kCheckpoint,        ///< a checkpoint was written
  kStopped,           ///< by request
  kFailed,            ///< by the error in the message
};

/// Returns the name in events.jsonl: "oom_split".
const char* to_string(EventKind kind);

/// Returns Unix time in seconds.
double unix_seconds();

/// An event of a run, a line of events.jsonl.
struct Event {
  int64_t step = 0;  ///< the step in which it happened; 0: before the first
  EventKind kind = EventKind::kAnomaly;
  std::string message{};           ///< human-readable
  std::vector<std::string> ids{};  ///< ids of the affected samples
  double time = unix_seconds();

  /// Returns {"step", "time", "kind", "message", "ids"}.
  std::string to_json_line() const;
};

}  // namespace vlmtrain::report
