#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/sample/statistics.h"
#include "vlmtrain/engine/settings/step_layout.h"
#include "vlmtrain/evaluation/metrics.h"
#include "vlmtrain/evaluation/scores.h"
#include "vlmtrain/image/points.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/box_format.h"
#include "vlmtrain/report/metrics.h"

namespace vlmtrain::models {

class Processor;
class VisionLanguageModel;

}  // namespace vlmtrain::models

namespace vlmtrain::evaluation {

struct EvaluatedAnswer;

/// The settings of evaluate().
struct EvaluationSettings {
  int64_t batch_size = 16;                  ///< samples per batch, at least 1
  engine::EvaluationLayout layout = {};     ///< how a batch is divided to save memory
  int64_t num_workers = 1;                  ///< threads that decode samples
  bool generate_answers = true;             ///< also generates answers; false: computes only the loss
  int64_t max_new_tokens = 32;              ///< maximum number of tokens per answer
  MetricSettings metrics = {};              ///< metrics of the generated answers
  std::vector<int64_t> eos_token_ids = {};  ///< each ends an answer; empty: the processor's end of turn
  data::BadSamplePolicy on_bad_sample = data::BadSamplePolicy::kFail;
  int64_t prefetch_bytes = 0;  ///< maximum bytes of decoded samples that wait; 0: no limit
  /// Called before each full batch, on the calling thread. If it returns true, the evaluation ends
  /// there and is not complete. May be empty.
  std::function<bool()> should_stop = {};
  /// Receives an event if memory runs out: for each batch that is split, and at the end for all
  /// dropped samples, with their ids. Without it, the messages are logged.
  std::function<void(report::EventKind, const std::string& message, std::vector<std::string> ids)> on_event = {};
};

/// The scores of the samples of a task.
struct TaskScore {
  int64_t num_samples = 0;            ///< samples whose answers were compared
  int64_t num_exact_matches = 0;      ///< answers equal to the expected one
  int64_t num_samples_with_loss = 0;  ///< samples that contribute to the loss
  double loss_sum = 0;                ///< weighted sum of the cross-entropy of all label tokens
  int64_t num_label_tokens = 0;       ///< tokens in the loss
  double label_weight = 0;            ///< sum of the weights of these tokens
  MetricSums metric_sums = {};        ///< of the answers; those of EvaluationSettings::metrics

  double exact_match() const {
    return num_samples > 0 ? static_cast<double>(num_exact_matches) / static_cast<double>(num_samples) : 0;
  }
  /// Returns the weighted mean over all label tokens.
  double loss() const { return label_weight > 0 ? loss_sum / label_weight : 0; }
  /// Returns the score for reports; the loss is NaN without label tokens.
  report::EvaluationScore make_evaluation_score() const;
};

/// The result of evaluate().
struct EvaluationResult {
  TaskScore total;
  std::map<std::string, TaskScore> by_task;   ///< samples without a task are counted in `total` only
  ClosedQuestionScore closed_question_score;  ///< answers to closed questions
  OpenQuestionScore open_question_score;      ///< answers to open questions
  MaskScores masks;                           ///< with teacher forcing
  data::NoticeCounts notices;                 ///< notices of the evaluated samples
  int64_t num_skipped_samples = 0;            ///< bad samples skipped with on_bad_sample=skip
  int64_t num_dropped_samples = 0;            ///< samples that do not fit into memory even alone
  int64_t batch_size = 0;                     ///< the final batch size, lower than requested if memory ran out
  int64_t num_oom_splits = 0;                 ///< batches that ran out of memory and were repeated
  double seconds = 0;                         ///< duration; 0 if it was interrupted
  bool is_complete = true;                    ///< false: should_stop returned true

  /// Returns the output of `eval --json`.
  std::string to_json() const;
  /// Returns the metrics for a line of metrics.jsonl. `has_values`: false on a virtual GPU, which
  /// computes none; losses are NaN then, and other scores are missing.
  report::EvaluationMetrics make_metrics(bool has_values = true) const;
};

/// Computes the loss over every response and greedy answers to the last question of each record. An
/// answer is exact if it equals the record's, up to surrounding white space. Masks are predicted
/// with teacher forcing, in the size of their images. Closed and open questions are scored as in
/// scores.h. The media of a batch are decoded and encoded once. `on_answer` receives each
/// answer in the order of the data set, on the calling thread; it may be empty.
///
/// If device or host memory runs out, caches are emptied and the batch size is halved for the rest.
/// A single sample is tried once more with one tile per vision pass and small loss chunks, and then
/// dropped. The loss stays the same up to rounding: it is summed by sample in double. Throws
/// UserError (kBadData) if no record can be used, and for a bad sample unless
/// settings.on_bad_sample skips it.
EvaluationResult evaluate(const models::VisionLanguageModel& model, const models::Processor& processor,
                          const io::Records& records, const EvaluationSettings& settings,
                          const std::function<void(const EvaluatedAnswer&)>& on_answer);

/// The predicted and the true boxes of an answer, in pixels of the decoded image.
struct BoxComparison {
  int64_t image_index = 0;  ///< index in Record::images
  std::vector<image::Box> predicted_boxes{};
  std::vector<image::Box> true_boxes{};
  double iou = 0;  ///< mean of the true boxes, Metric::kBoxIou
};

/// Returns the boxes in an expected and a predicted answer; nothing if the last turn of `record` has
/// no box. `written` is the result of Processor::write_objects(). The boxes of an answer are assumed
/// to be in the image of its first box.
std::optional<BoxComparison> compare_boxes(const io::Record& record, const models::WrittenRecord& written,
                                           std::string_view expected, std::string_view prediction);

}  // namespace vlmtrain::evaluation
