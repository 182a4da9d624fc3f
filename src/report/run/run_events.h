#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace vlmtrain::report {

/// The events of events.jsonl. Keeps the newest of each kind.
class RunEvents {
 public:
  /// Adds a line. Ignores lines without a kind.
  void add(const nlohmann::json& line);

  /// Returns the kind of the last event that ended the run, "stopped" or "failed"; empty if the run
  /// has resumed since.
  const std::string& end_state() const { return end_state_; }
  /// Returns the step and the message of that event.
  int64_t end_step() const { return end_step_; }
  const std::string& end_message() const { return end_message_; }
  /// Returns the Unix time of the newest event in seconds; 0 without events.
  double last_event_time() const { return last_event_time_; }

  /// Returns {"counts": {kind: number of events}, "shown": [{"number", "step", "time", "kind",
  /// "message", "ids", "more_ids": number of ids that are not shown}, newest first]}.
  nlohmann::json to_json() const;

 private:
  std::map<std::string, int64_t> event_counts_;
  std::map<std::string, std::deque<nlohmann::json>>
      newest_events_;              // by kind, so that frequent kinds do not hide rare ones
  int64_t next_event_number_ = 0;  // events so far; numbers the next one
  std::string end_state_;
  std::string end_message_;
  int64_t end_step_ = 0;
  double last_event_time_ = 0;
};

/// The predictions of predictions.jsonl. Keeps the most recently answered samples, each with its
/// first and its newest answers.
class RunPredictions {
 public:
  /// Adds a line. Lines with the same id and question belong to one sample.
  void add(const nlohmann::json& line);

  /// Returns {"samples": [{"id", "task", "question", "expected", "images", for volumes "captions",
  /// "answers": [{"step", "answer", for masks "masks": [{"structure", "dice", "overlay"}], for boxes
  /// "boxes": {"iou", "overlay"}}, oldest
  /// first]}], "hidden": number of samples that are not shown}.
  nlohmann::json to_json() const;

 private:
  struct Answer {
    int64_t step;
    std::string text;
    nlohmann::json masks;  // null without masks
    nlohmann::json boxes;  // null without boxes
  };
  /// A sample with its answers, oldest first.
  struct PredictedSample {
    std::string id;
    std::string task;
    std::string question;
    std::string expected;
    std::vector<std::string> images;
    std::vector<std::string> captions;  // by image; empty if no image has one
    std::vector<Answer> answers;
  };

  /// Adds the valid images of a line, with their captions, to `sample`.
  static void add_images(const nlohmann::json& line, PredictedSample& sample);

  std::deque<PredictedSample> samples_;  // in the order of their first answer
  int64_t num_hidden_samples_ = 0;
};

}  // namespace vlmtrain::report
