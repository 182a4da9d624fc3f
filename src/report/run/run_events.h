#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

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

/// What predictions.jsonl tells: the samples that were asked last, each with what was answered when.
class RunPredictions {
 public:
  void add(const nlohmann::json& line);

  /// {"samples": [{"id", "task", "question", "expected", "images", of volumes "captions", "answers": [{"step", "given",
  /// and where masks were drawn "masks": [{"structure", "dice", "overlay"}]}, oldest first]}], "left_out": samples
  /// asked before that are not shown}
  nlohmann::json to_json() const;

 private:
  struct Answer {
    int64_t step;
    std::string text;
    nlohmann::json masks;  // null: none
  };
  struct PredictedSample {
    std::string id;
    std::string task;
    std::string question;
    std::string expected;
    std::vector<std::string> images;
    std::vector<std::string> captions;  // of each image; empty: none has one
    std::vector<Answer> answers;
  };

  static void add_images(const nlohmann::json& line, PredictedSample& sample);

  std::deque<PredictedSample> samples_;  // in the order in which they were first asked
  int64_t num_hidden_ = 0;
};

}  // namespace vlmtrain::report
