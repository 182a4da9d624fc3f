#include "vlmtrain/report/event.h"

#include <chrono>

#include "report/format/json_fields.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::report {

const char* to_string(EventKind kind) {
  switch (kind) {
    case EventKind::kOomSplit:
      return "oom_split";
    case EventKind::kForecastSplit:
      return "foreseen_split";
    case EventKind::kAnomaly:
      return "anomaly";
    case EventKind::kSkippedStep:
      return "skipped_step";
    case EventKind::kMemoryGrowth:
      return "memory_growth";
    case EventKind::kMemoryFull:
      return "memory_full";
    case EventKind::kCacheEmptied:
      return "cache_emptied";
    case EventKind::kLookAhead:
      return "twin";
    case EventKind::kResumed:
      return "resumed";
    case EventKind::kChanged:
      return "changed";
    case EventKind::kFewerPredictions:
      return "fewer_answers";
    case EventKind::kCheckpoint:
      return "checkpoint";
    case EventKind::kStopped:
      return "stopped";
    case EventKind::kFailed:
      return "failed";
  }
  return "";
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string Event::to_json_line() const {
  return io::to_json_string(nlohmann::ordered_json{
      {"step", step}, {"time", time}, {"kind", to_string(kind)}, {"message", message}, {"ids", ids}});
}

}  // namespace vlmtrain::report
