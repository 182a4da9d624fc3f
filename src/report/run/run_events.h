#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace vlmtrain::report {

/// The events of events.jsonl.
class RunEvents {
 public:
  void add(const nlohmann::json& line);

  /// Returns the last event that ended the run, "stopped" or "failed", with its step; empty if the
  /// run resumed since.
  const std::string& end_state() const { return end_state_; }
  int64_t end_step() const { return end_step_; }
  const std::string& end_message() const { return end_message_; }
  double last_time() const { return last_time_; }

  /// Returns {"counts": {kind: events}, "shown": [{"step", "time", "kind", "message", "ids",
  /// "more_ids"}, newest first]}.
  nlohmann::json to_json() const;

 private:
  std::map<std::string, int64_t> counts_;
  std::map<std::string, std::deque<nlohmann::json>> newest_;  // by kind, so that frequent kinds do not hide rare ones
  int64_t number_ = 0;
  std::string end_state_;
  std::string end_message_;
  int64_t end_step_ = 0;
  double last_time_ = 0;
};

/// The predictions of predictions.jsonl: the most recently answered samples with their answers.
class RunPredictions {
 public:
  void add(const nlohmann::json& line);

  /// Returns {"samples": [{"id", "task", "question", "expected", "images", for volumes "captions",
  /// "answers": [{"step", "answer", for masks "masks": [{"structure", "dice", "overlay"}]}, oldest
  /// first]}], "hidden": number of samples that are not shown}.
  nlohmann::json to_json() const;

 private:
  struct Answer {
    int64_t step;
    std::string text;
    nlohmann::json masks;  // null without masks
  };
  struct PredictedSample {
    std::string id;
    std::string task;
    std::string question;
    std::string expected;
    std::vector<std::string> images;
    std::vector<std::string> captions;  // by image; empty if no image has one
    std::vector<Answer> answers;
  };

  static void add_images(const nlohmann::json& line, PredictedSample& sample);

  std::deque<PredictedSample> samples_;  // in the order of their first answer
  int64_t num_hidden_ = 0;
};

}  // namespace vlmtrain::report
