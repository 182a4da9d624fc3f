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

/// At each checkpoint, the model's answers to a few records, as many as its share of the time allows: one sample after
/// the other in a fixed rotation, so that each gets its turn. At the run's end there is at least one. What a killed
/// process had saved but not asked is asked when the run goes on.
class SamplePredictions {
 public:
  /// About `count` of the `records`. `share`: of the time since this process's first step that answers
  /// may take, from 0 to 1; 1: all of them at each checkpoint, whatever they take. `run_folder`: with what was answered
  /// before up to the checkpoint that the run goes on from.
  SamplePredictions(const io::Records& records, int64_t count, const models::VisionLanguageModel& model,
                    const models::Processor& processor, at::Device device, double share,
                    const std::filesystem::path& run_folder, CallbackList& callbacks);

  /// As Callback::on_past_step.
  void add_past_step(const nlohmann::json& line);
  /// The run goes on, with the model as it was saved after `step`.
  void answer_saved_step(int64_t step);
  /// The first step of this process begins.
  void start_clock();
  /// All steps so far have been reported; the checkpoint holds the model as it is now.
  void after_checkpoint(int64_t step);
  /// The run ends well, by its last step or a request to stop.
  void finish();

  /// That answers of this process took.
  double seconds() const { return answer_seconds_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Thumbnails {
    std::vector<std::string> images;
    std::vector<std::string> captions;  // of volumes among them; empty: there is none
  };

  /// Of the records in their rotation, those that there is time for.
  void answer_all(int64_t step);
  /// The next one; false where there is no memory for it.
  bool answer_next(int64_t step);
  /// Of this process's steps, and of those before that no answers were charged to.
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
  CallbackList& callbacks_;                                 // told of answers and events
  std::unordered_map<std::string, Thumbnails> thumbnails_;  // by record

  size_t next_ = 0;             // of the records
  int64_t answered_step_ = -1;  // after which a sample was asked last
  int64_t saved_step_ = -1;     // of the last checkpoint of this process
  std::optional<Clock::time_point> first_step_;
  double past_seconds_ = 0;
  double answer_seconds_ = 0;
  int64_t answers_ = 0;  // that these seconds were for
  bool has_reported_fewer_ = false;
};

}  // namespace vlmtrain::train
