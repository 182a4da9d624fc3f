#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <string>

namespace vlmtrain::report {

/// What events.jsonl tells.
class RunEvents {
 public:
  void add(const nlohmann::json& line);

  /// The last word about the run's end: "stopped" or "failed", with its step, unless it was resumed since; else empty.
  const std::string& end_state() const { return end_state_; }
  int64_t end_step() const { return end_step_; }
  const std::string& end_message() const { return end_message_; }
  double last_time() const { return last_time_; }

  /// {"counts": {kind: events}, "shown": [{"step", "time", "kind", "message", "ids", "more_ids"}, newest first]}
  nlohmann::json to_json() const;

 private:
  std::map<std::string, int64_t> counts_;
  std::map<std::string, std::deque<nlohmann::json>> newest_;  // by kind, so that many of one do not hide the others
  int64_t number_ = 0;
  std::string end_state_;
  std::string end_message_;
  int64_t end_step_ = 0;
  double last_time_ = 0;
};

}  // namespace vlmtrain::report
