#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "train/run/callbacks.h"
#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/report/prediction.h"

namespace vlmtrain::train {

/// Sample predictions at each checkpoint: the model's answers to a few records in a fixed rotation,
/// as many as a share of the time allows, and at least one at the run's end. Answers that a killed
/// process did not give are given when the run resumes.
class SamplePredictions {
 public:
  /// Takes about `count` of `records`. `share` of the time since the first step of this process,
  /// from 0 to 1, may be spent on answers; 1: all records are answered at each checkpoint.
  /// `run_folder` has the earlier answers of a resumed run. The references must outlive the object.
  SamplePredictions(const io::Records& records, int64_t count, const models::VisionLanguageModel& model,
                    const models::Processor& processor, at::Device device, double share,
                    const std::filesystem::path& run_folder, CallbackList& callbacks);

  /// See Callback::on_past_step.
  void add_past_step(const nlohmann::json& line);
  /// Answers with the model of the checkpoint after `step`, if a killed process did not.
  void answer_saved_step(int64_t step);
  /// Starts the clock of `share` at the first step of this process.
  void start_clock();
  /// Answers records after a checkpoint. REQUIRES: all steps so far were reported.
  void after_checkpoint(int64_t step);
  /// Gives the answers at the end of a run that did not fail.
  void finish();

  /// Returns the seconds that answers of this process took.
  double seconds() const { return answer_seconds_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Thumbnails {
    std::vector<std::string> images;
    std::vector<std::string> captions;  // of volumes; empty if there are none
  };

  /// Answers the next records of the rotation while there is time.
  void answer_all(int64_t step);
  /// Answers the next record; returns false if memory does not suffice.
  bool answer_next(int64_t step);
  /// Returns the seconds of this process's steps and of earlier steps without answers.
  double seconds_so_far() const;
  bool has_time_left() const;
  void report_out_of_memory(const std::string& reason);
  void report_fewer_answers(int64_t step, size_t num_answered);
  const Thumbnails& thumbnails(const io::Record& record);

  std::vector<io::Record> records_;
  const models::VisionLanguageModel& model_;
  const models::Processor& processor_;
  double share_;
  evaluation::EvaluationSettings settings_;
  CallbackList& callbacks_;                                 // receives answers and events
  std::unordered_map<std::string, Thumbnails> thumbnails_;  // by record id

  size_t next_ = 0;             // index of the next record
  int64_t answered_step_ = -1;  // step of the newest answer
  int64_t saved_step_ = -1;     // step of the newest checkpoint of this process
  std::optional<Clock::time_point> first_step_;
  double past_seconds_ = 0;
  double answer_seconds_ = 0;
  int64_t answers_ = 0;  // counted in answer_seconds_
  bool has_reported_fewer_ = false;
};

}  // namespace vlmtrain::train
