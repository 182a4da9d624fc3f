#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace vlmtrain::report {

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
