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

/// The sample predictions of a run: at each checkpoint, the model answers a few records in a fixed
/// rotation, as many as a share of the run's time allows, and at least one at the end of the run.
/// If a process was killed before it answered, the resumed run answers. Not thread-safe.
class SamplePredictions {
 public:
  /// Selects up to `count` of `records` and copies them. `time_share`: maximum share, from 0 to 1,
  /// of the time since the first step that answers may take; 1: all records are answered at each
  /// checkpoint. `run_folder`: has predictions.jsonl of a resumed run. `model`, `processor` and
  /// `callbacks` must outlive the object.
  SamplePredictions(const io::Records& records, int64_t count, const models::VisionLanguageModel& model,
                    const models::Processor& processor, double time_share, const std::filesystem::path& run_folder,
                    CallbackList& callbacks);

  /// Adds the duration of a step of an earlier process, a line of metrics.jsonl.
  void add_logged_step(const nlohmann::json& line);
  /// Answers after `step`, the step of the loaded checkpoint, unless an earlier process has
  /// answered.
  void predict_with_loaded_checkpoint(int64_t step);
  /// Starts the clock for `time_share`. Called before the first step of this process.
  void start_clock();
  /// Answers records after the checkpoint of `step`. REQUIRES: all completed steps were reported.
  void on_checkpoint_saved(int64_t step);
  /// Answers one record at the end of a run, unless its last checkpoint has an answer. Not called
  /// after an error.
  void finish();

  /// Returns the seconds that answers of this process took.
  double prediction_seconds() const { return prediction_seconds_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Thumbnails {
    std::vector<std::string> images;    // data URIs
    std::vector<std::string> captions;  // by image, empty for images that are not volumes; none without volumes
  };

  /// Answers the next records of the rotation while there is time.
  void predict_records(int64_t step);
  /// Answers the next record. Returns false if memory runs out.
  bool predict_next_record(int64_t step);
  /// Returns the seconds of this process's steps and of earlier steps without answers.
  double get_elapsed_seconds() const;
  bool has_remaining_time() const;
  void report_out_of_memory(const std::string& reason);
  void report_fewer_predictions(int64_t step, size_t num_predicted);
  /// Returns the thumbnails of a record, which are made once.
  const Thumbnails& get_or_make_thumbnails(const io::Record& record);

  std::vector<io::Record> records_;
  const models::VisionLanguageModel& model_;
  const models::Processor& processor_;
  double max_time_share_;
  evaluation::EvaluationSettings settings_;
  CallbackList& callbacks_;                                 // receives answers and events
  std::unordered_map<std::string, Thumbnails> thumbnails_;  // by record id

  size_t next_record_index_ = 0;       // in records_
  int64_t last_prediction_step_ = -1;  // step of the newest answer
  int64_t saved_step_ = -1;            // step of the newest checkpoint of this process
  std::optional<Clock::time_point> first_step_time_;
  double earlier_process_seconds_ = 0;  // of steps of earlier processes after the newest answer
  double prediction_seconds_ = 0;       // of all answers of this process
  int64_t num_predictions_ = 0;         // of this process
  bool has_reported_fewer_predictions_ = false;
};

}  // namespace vlmtrain::train
