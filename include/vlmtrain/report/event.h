#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vlmtrain::report {

enum class EventKind : uint8_t {
  kOomSplit,          ///< memory did not suffice: the step began anew in smaller micro-batches
  kForecastSplit,     ///< the twin foresaw that it would not suffice
  kAnomaly,           ///< a loss or gradient norm that is not finite or far from those before
  kSkippedStep,       ///< nothing was applied
  kMemoryGrowth,      ///< memory grows from step to step
  kMemoryFull,        ///< hardly any of it is left
  kCacheEmptied,      ///< the allocator gave back what no tensor used
  kLookAhead,         ///< what became of the twin: started, gone, far from what is measured
  kResumed,           ///< the run goes on after `step`
  kChanged,           ///< with other settings from there on, which the message names
  kFewerPredictions,  ///< samples are answered more rarely than asked for, since answers took long
  kCheckpoint,        ///< one was written
  kStopped,           ///< on request
  kFailed,            ///< by an error, which is the message
};

/// As events.jsonl spells it: "oom_split".
const char* to_string(EventKind kind);

/// Seconds since 1970.
double unix_seconds();

/// Something that happened in a run, a line of events.jsonl.
struct Event {
  int64_t step = 0;  ///< in which it happened; 0: before the first
  EventKind kind = EventKind::kAnomaly;
  std::string message{};           ///< for people
  std::vector<std::string> ids{};  ///< the samples it is about
  double time = unix_seconds();

  /// {"step", "time", "kind", "message", "ids"}
  std::string to_json_line() const;
};

}  // namespace vlmtrain::report
