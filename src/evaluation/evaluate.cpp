#include "vlmtrain/evaluation/evaluate.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <span>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/loader/sample_stream.h"
#include "vlmtrain/engine/generation/evaluation.h"
#include "vlmtrain/evaluation/evaluated_answer.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/out_of_memory.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::evaluation {

namespace {

std::string trim_whitespace(const std::string& text) {
  constexpr const char* kWhitespace = " \t\r\n";
  const auto first = text.find_first_not_of(kWhitespace);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(kWhitespace) - first + 1);
}

/// Returns the last question of a conversation, without media placeholders.
std::string find_last_question(std::span<const io::Turn> turns) {
  const auto last_user_turn = std::find_if(turns.rbegin(), turns.rend(),
                                           [](const io::Turn& candidate) { return candidate.role == io::Role::kUser; });
  if (last_user_turn == turns.rend()) return "";
  std::string question = last_user_turn->text;
  const std::vector<io::MediaPlaceholder> placeholders = io::find_placeholders(*last_user_turn);
  // From the last placeholder to the first, so that earlier positions stay valid. All kinds of
  // placeholders, such as <image> and <video>, have the same length.
  for (auto placeholder = placeholders.rbegin(); placeholder != placeholders.rend(); ++placeholder)
    question.erase(placeholder->begin, io::kImagePlaceholder.size());
  return trim_whitespace(question);
}

/// The state of one evaluation. Loader threads call make_sample(); everything else runs on the
/// calling thread.
class Evaluator {
 public:
  Evaluator(const models::VisionLanguageModel& model, const models::Processor& processor, const io::Records& records,
            const EvaluationSettings& settings, const std::function<void(const EvaluatedAnswer&)>& on_answer)
      : model_(model), processor_(processor), records_(records), settings_(settings), on_answer_(on_answer) {
    generation_settings_.device = model.parameters().options().device();
    generation_settings_.max_new_tokens = settings.max_new_tokens;
    generation_settings_.max_length = processor.max_positions();
    generation_settings_.eos_token_ids = settings.eos_token_ids;
    if (generation_settings_.eos_token_ids.empty()) generation_settings_.eos_token_ids = {processor.end_of_turn_id()};
  }

  EvaluationResult run() {
    const auto start = std::chrono::steady_clock::now();
    result_.batch_size = settings_.batch_size;
    data::SampleStream sample_stream(data::make_sequential_generator(records_.size()),
                                     [this](int64_t index) { return make_sample(index); },
                                     {.num_workers = settings_.num_workers,
                                      // The next batch is decoded while the current one is scored.
                                      .max_prefetch_samples = 2 * settings_.batch_size,
                                      .prefetch_bytes = settings_.prefetch_bytes});
    std::vector<data::Sample> conversations, documents;  // batches; documents have no answers
    while (auto item = sample_stream.next()) {
      if (item->error) {
        skip_sample_or_rethrow(item->error);
        continue;
      }
      result_.notices.add(item->sample.id, item->sample.notices);
      auto& batch = has_answer(item->sample) ? conversations : documents;
      batch.push_back(std::move(item->sample));
      if (std::ssize(batch) < result_.batch_size) continue;
      if (settings_.should_stop && settings_.should_stop()) {
        result_.is_complete = false;
        return result_;
      }
      score_samples(batch);
      erase_pending_prompts(batch);
      batch.clear();
    }
    for (const auto* batch : {&conversations, &documents}) {
      if (!batch->empty()) score_samples(*batch);
    }
    if (result_.num_skipped_samples > 0 && result_.num_skipped_samples == records_.size()) {
      throw data_error("{}: none of the {} samples can be used; correct the first problem: {}", keys::data::kEval,
                       records_.size(), first_bad_sample_problem_);
    }
    report_dropped_samples();
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result_;
  }

 private:
  /// The prompt of a sample that is not scored yet.
  struct PendingPrompt {
    data::Sample sample;                                    // without pixels
    std::optional<models::WrittenRecord> written_record{};  // of a record with boxes
  };

  /// Decodes a sample, and stores its prompt in pending_prompts_ while the record's media are in
  /// memory.
  data::Sample make_sample(int64_t index) {
    const io::Record record = records_.at(index);
    data::Sample sample = data::make_sample(processor_, record, index);
    if (settings_.generate_answers && !record.is_document()) {
      PendingPrompt prompt{.sample = processor_.process_prompt_headers(record, index)};
      if (!record.objects.empty()) prompt.written_record = processor_.write_objects(record);
      const std::lock_guard lock(pending_prompts_mutex_);
      pending_prompts_.insert_or_assign(index, std::move(prompt));
    }
    return sample;
  }

  /// Returns whether the model answers the sample: it is a conversation, and answers are generated.
  bool has_answer(const data::Sample& sample) {
    const std::lock_guard lock(pending_prompts_mutex_);
    return pending_prompts_.contains(sample.index);
  }

  void skip_sample_or_rethrow(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const UserError& bad) {
      const auto* sample = dynamic_cast<const data::SampleError*>(&bad);
      const bool is_dropped = sample != nullptr && sample->is_dropped();
      const bool should_fail = settings_.on_bad_sample == data::BadSamplePolicy::kFail && !is_dropped;
      if (bad.code() != ExitCode::kBadData || should_fail) throw;
      spdlog::warn("skipped: {}", bad.what());
      if (result_.num_skipped_samples == 0) first_bad_sample_problem_ = bad.what();
      ++result_.num_skipped_samples;
    }
  }

  void erase_pending_prompts(const std::vector<data::Sample>& samples) {
    const std::lock_guard lock(pending_prompts_mutex_);
    for (const data::Sample& sample : samples) pending_prompts_.erase(sample.index);
  }

  /// Scores samples in batches that fit into memory.
  void score_samples(std::span<const data::Sample> samples) {
    while (!samples.empty()) {
      const auto size = static_cast<size_t>(std::min(result_.batch_size, std::ssize(samples)));
      const auto out_of_memory = try_score_batch(samples.first(size), settings_.layout);
      if (!out_of_memory) {
        samples = samples.subspan(size);
        continue;
      }
      ++result_.num_oom_splits;
      if (size > 1) {
        result_.batch_size = static_cast<int64_t>(size + 1) / 2;
        report_event(report::EventKind::kOomSplit,
                     fmt::format("evaluation: out of memory ({}); it continues with batches of {}",
                                 out_of_memory->reason, result_.batch_size),
                     {});
        continue;
      }
      if (const auto second_failure = try_score_batch(samples.first(1), engine::kMinMemoryEvaluationLayout))
        dropped_sample_ids_.push_back(samples.front().id);
      samples = samples.subspan(1);
    }
  }

  /// Scores one batch, either of samples with answers or of samples without. If memory runs out,
  /// counts nothing and returns the error.
  std::optional<memory::OutOfMemory> try_score_batch(std::span<const data::Sample> samples,
                                                     const engine::EvaluationLayout& layout) {
    try {
      const bool has_answers = has_answer(samples.front());
      std::vector<data::Sample> prompts;
      for (const auto& sample : samples) {
        if (!has_answers) break;
        const std::lock_guard lock(pending_prompts_mutex_);
        prompts.push_back(pending_prompts_.at(sample.index).sample);
      }
      const auto batch_result = engine::evaluate_batch(model_, {samples.begin(), samples.end()}, std::move(prompts),
                                                       layout, generation_settings_);
      for (size_t i = 0; i < samples.size(); ++i) {
        add_loss(samples[i], batch_result.loss_sums[i]);
        auto masks = samples[i].masks.empty() ? std::vector<MaskPrediction>{}
                                              : score_masks(samples[i], batch_result.mask_logits[i]);
        if (has_answers) score_answer(samples[i], batch_result.answers[i], std::move(masks));
      }
      return std::nullopt;
    } catch (const std::exception& error) {
      auto out_of_memory = memory::detect_out_of_memory(error);
      if (!out_of_memory) throw;
      if (out_of_memory->kind != memory::MemoryKind::kDevice)
        memory::release_pinned_memory(generation_settings_.device);
      memory::empty_cache(generation_settings_.device);
      return out_of_memory;
    }
  }

  std::optional<models::WrittenRecord> get_written_record(int64_t index) {
    const std::lock_guard lock(pending_prompts_mutex_);
    return pending_prompts_.at(index).written_record;
  }

  io::Record read_record_without_media_bytes(const data::Sample& sample) const {
    return records_.at_without_media_bytes(sample.index);
  }

  void add_loss(const data::Sample& sample, double loss) {
    const auto add = [&](TaskScore& score) {
      ++score.num_samples_with_loss;
      score.loss_sum += loss;
      score.num_label_tokens += sample.label_tokens();
      score.label_weight += sample.label_weight();
    };
    add(result_.total);
    if (const auto& task = read_record_without_media_bytes(sample).task; !task.empty()) add(result_.by_task[task]);
  }

  /// Adds the scores of the sample's masks and returns the masks. `logits`: fp32 [masks, height,
  /// width].
  std::vector<MaskPrediction> score_masks(const data::Sample& sample, const at::Tensor& logits) {
    const io::Record record = records_.at(sample.index);
    const std::vector<at::Tensor> true_masks = processor_.load_masks(record);
    const data::SegmentationMasks& masks = sample.masks;
    std::vector<MaskPrediction> mask_predictions;
    for (size_t i = 0; i < true_masks.size(); ++i) {
      const at::Tensor& true_mask = true_masks[i];
      const at::Tensor mask =
          postprocess_mask(logits[static_cast<int64_t>(i)], masks.pixels.size(-1), masks.valid_regions[i],
                           {.height = true_mask.size(0), .width = true_mask.size(1)});
      const MaskScore mask_score = score_mask(mask, true_mask);
      result_.masks.add(mask_score, record.task, masks.structure_names[i]);
      mask_predictions.push_back({.structure = masks.structure_names[i],
                                  .image_index = record.masks[i].image_index,
                                  .predicted_mask = mask,
                                  .true_mask = true_mask,
                                  .dice = mask_score.dice});
    }
    return mask_predictions;
  }

  void report_event(report::EventKind kind, const std::string& message, std::vector<std::string> ids) const {
    if (settings_.on_event) {
      settings_.on_event(kind, message, std::move(ids));
    } else {
      spdlog::warn("{}", message);
    }
  }

  void report_dropped_samples() {
    result_.num_dropped_samples = std::ssize(dropped_sample_ids_);
    if (dropped_sample_ids_.empty()) return;
    // Keeps the message short. The event has all ids.
    constexpr size_t kMaxReportedIds = 5;
    const auto reported_ids =
        std::span(dropped_sample_ids_).first(std::min(kMaxReportedIds, dropped_sample_ids_.size()));
    report_event(report::EventKind::kAnomaly,
                 fmt::format("evaluation: {} dropped, because each exceeds memory even alone: {}{}; lower {} or {}",
                             pluralize(result_.num_dropped_samples, "sample"), fmt::join(reported_ids, ", "),
                             dropped_sample_ids_.size() > kMaxReportedIds ? ", …" : "", keys::data::kMaxLength,
                             keys::data::kImageMaxPixels),
                 dropped_sample_ids_);
  }

  void score_answer(const data::Sample& sample, const std::vector<int64_t>& answer_ids,
                    std::vector<MaskPrediction> masks) {
    const auto& record = read_record_without_media_bytes(sample);
    // Without a text there is no expected answer, as after a turn of the user or for a tool call.
    if (record.turns.back().role != io::Role::kAssistant || record.turns.back().text.empty()) return;
    const std::optional<models::WrittenRecord> written_record = get_written_record(sample.index);
    const std::vector<io::Turn>& turns = written_record ? written_record->turns : record.turns;
    EvaluatedAnswer answer{record.id,
                           record.task,
                           find_last_question(turns),
                           trim_whitespace(turns.back().text),
                           trim_whitespace(processor_.tokenizer().decode(answer_ids, /*skip_special_tokens=*/true)),
                           determine_answer_type(record),
                           std::move(masks),
                           sample.index};
    MetricSettings metrics = settings_.metrics;
    if (written_record) {
      answer.boxes = compare_boxes(record, *written_record, answer.expected, answer.prediction);
      if (answer.boxes) metrics.add({Metric::kBoxIou, Metric::kBoxAccuracy});
    }
    answer.metric_sums = score_answer_metrics(answer.expected, answer.prediction, metrics);
    const bool is_exact_match = answer.expected == answer.prediction;
    const auto add = [&](TaskScore& score) {
      ++score.num_samples;
      score.num_exact_matches += is_exact_match ? 1 : 0;
      add_metric_sums(score.metric_sums, answer.metric_sums);
    };
    add(result_.total);
    if (!record.task.empty()) add(result_.by_task[record.task]);
    if (answer.answer_type == AnswerType::kClosed) {
      result_.closed_question_score.add(answer.expected, answer.prediction);
    } else {
      result_.open_question_score.add(answer.expected, answer.prediction);
    }
    if (on_answer_) on_answer_(answer);
  }

  const models::VisionLanguageModel& model_;
  const models::Processor& processor_;
  const io::Records& records_;
  const EvaluationSettings& settings_;
  engine::GenerationSettings generation_settings_;
  const std::function<void(const EvaluatedAnswer&)>& on_answer_;
  EvaluationResult result_;
  std::string first_bad_sample_problem_;
  std::vector<std::string> dropped_sample_ids_;  // these samples do not fit into memory
  std::mutex pending_prompts_mutex_;
  // Of samples that are not scored yet, by record index; guarded by pending_prompts_mutex_.
  std::map<int64_t, PendingPrompt> pending_prompts_;
};

}  // namespace

EvaluationResult evaluate(const models::VisionLanguageModel& model, const models::Processor& processor,
                          const io::Records& records, const EvaluationSettings& settings,
                          const std::function<void(const EvaluatedAnswer&)>& on_answer) {
  return Evaluator(model, processor, records, settings, on_answer).run();
}

}  // namespace vlmtrain::evaluation
