#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "vlmtrain/data/loader.h"
#include "vlmtrain/data/notice_counts.h"
#include "vlmtrain/engine/evaluation.h"
#include "vlmtrain/evaluation/answer_score.h"
#include "vlmtrain/evaluation/mask_score.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/report/event.h"
#include "vlmtrain/report/metrics.h"

namespace vlmtrain::evaluation {

struct EvaluationSettings {
  at::Device device = at::kCPU;
  int64_t batch_size = 16;
  engine::EvaluationLayout layout = {};
  int64_t num_workers = 1;
  bool answers = true;  ///< false: the loss only
  int64_t max_new_tokens = 32;
  std::vector<int64_t> eos_token_ids = {};  ///< each ends an answer; empty: the processor's end of turn
  data::BadSamplePolicy on_bad_sample = data::BadSamplePolicy::kFail;
  int64_t prefetch_bytes = 0;  ///< as SampleStream's
  /// Asked before each batch; an evaluation that is to stop ends there, and is no evaluation.
  std::function<bool()> should_stop = {};
  /// Hears where memory runs out: of batches that are cut, and in the end of samples that were left out.
  std::function<void(report::EventKind, const std::string& message, std::vector<std::string> ids)> on_event = {};
};

struct TaskScore {
  int64_t samples = 0;  ///< whose answers were compared with the data's
  int64_t num_exact = 0;
  int64_t num_with_loss = 0;  ///< samples that are in the loss
  double loss_sum = 0;        ///< over their label tokens
  int64_t label_tokens = 0;

  double exact_match() const { return samples > 0 ? static_cast<double>(num_exact) / static_cast<double>(samples) : 0; }
  /// The mean over all label tokens.
  double loss() const { return label_tokens > 0 ? loss_sum / static_cast<double>(label_tokens) : 0; }
  report::EvaluationScore metrics() const;
};

struct Evaluation {
  TaskScore total;
  std::map<std::string, TaskScore> by_task;  ///< samples without a task are counted in the total only
  ClosedScore closed;
  OpenScore open;
  MaskScores masks;            ///< of those that the model draws for the right answers
  data::NoticeCounts notices;  ///< of its samples
  int64_t num_skipped = 0;     ///< bad samples left out under on_bad_sample=skip
  int64_t num_dropped = 0;     ///< samples that do not fit into memory even alone
  int64_t batch_size = 0;      ///< as it was in the end: less than was asked for where memory ran out
  int64_t oom_splits = 0;      ///< batches that were done again in smaller pieces
  double seconds = 0;
  bool is_complete = true;  ///< false: it was stopped

  /// As `eval --json` prints it.
  std::string to_json() const;
  /// As a step's line has it. `has_values`: false on a virtual card.
  report::EvaluationMetrics metrics(bool has_values = true) const;
};

/// One answer of the model beside the one in the data.
struct Answer {
  std::string id, task;
  std::string question;  ///< the last of the record, without the places of images and videos
  std::string expected, prediction;
  AnswerType type = AnswerType::kOpen;
  std::vector<MaskPrediction> masks = {};  ///< that the model draws for the right answers of the record
  int64_t index = 0;                       ///< of the record
};

/// Loss over every answer, and greedy answers to the last question of each record: exact if equal to the record's after
/// white space at both ends is dropped; masks that the right answers stand for, in their pictures' own size; closed and
/// open ones as evaluation/answer_score.h says. A batch's pictures are decoded and pass the vision tower once.
/// `on_answer` sees each answer, in the data set's order.
///
/// Where memory runs out, of the device or of the host, caches are emptied and the batch is halved, from there on; a
/// sample alone is tried once more with its tiles one by one and in small loss chunks, then left out. The loss is the
/// same beyond rounding: it is summed up by sample, in double.
/// Throws UserError (kBadData) where none of the records can be used.
Evaluation evaluate(const models::VisionLanguageModel& model, const models::Processor& processor,
                    const io::Records& records, const EvaluationSettings& settings,
                    const std::function<void(const Answer&)>& on_answer);

}  // namespace vlmtrain::evaluation
