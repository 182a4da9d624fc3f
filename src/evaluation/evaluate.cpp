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
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/data/sample_stream.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/io/marks.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/recovery.h"
#include "vlmtrain/memory/shortage.h"

namespace vlmtrain::evaluation {

namespace {

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const auto first = text.find_first_not_of(kSpace);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

/// What the record's last answer answers, without the places of images and videos.
std::string question_of(const io::Record& record) {
  const auto turn = std::find_if(record.turns.rbegin(), record.turns.rend(),
                                 [](const io::Turn& candidate) { return candidate.role == io::Role::kUser; });
  if (turn == record.turns.rend()) return "";
  std::string question = turn->text;
  const std::vector<io::Mark> marks = io::find_marks(*turn);
  for (auto mark = marks.rbegin(); mark != marks.rend(); ++mark) question.erase(mark->begin, io::kImageMark.size());
  return trimmed(question);
}

class Evaluator {
 public:
  Evaluator(const models::VisionLanguageModel& model, const models::Processor& processor, const io::Records& records,
            const EvaluationSettings& settings, const std::function<void(const Answer&)>& on_answer)
      : model_(model), processor_(processor), records_(records), settings_(settings), on_answer_(on_answer) {
    generation_.device = settings.device;
    generation_.max_new_tokens = settings.max_new_tokens;
    generation_.most_tokens = processor.most_positions();
    generation_.end_token_ids = settings.end_token_ids;
    if (generation_.end_token_ids.empty()) generation_.end_token_ids = {processor.end_of_turn_id()};
  }

  Evaluation run() {
    const auto start = std::chrono::steady_clock::now();
    result_.batch_size = settings_.batch_size;
    data::SampleStream stream(
        data::file_order(records_.size()), [this](int64_t index) { return make_sample(index); },
        {.workers = settings_.num_workers, .ahead = 2 * settings_.batch_size, .bytes_ahead = settings_.bytes_ahead});
    std::vector<data::Sample> batch;
    while (auto item = stream.next()) {
      if (item->error) {
        skip_or_rethrow(item->error);
        continue;
      }
      result_.notices.add(item->sample.id, item->sample.notices);
      batch.push_back(std::move(item->sample));
      if (std::ssize(batch) < result_.batch_size) continue;
      if (settings_.is_to_stop && settings_.is_to_stop()) {
        result_.is_whole = false;
        return result_;
      }
      score(batch);
      forget_prompts(batch);
      batch.clear();
    }
    if (!batch.empty()) score(batch);
    if (result_.skipped > 0 && result_.skipped == records_.size()) {
      throw data_error("data.eval: none of the {} samples can be used; the first: {}", records_.size(), first_problem_);
    }
    tell_of_left_out();
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result_;
  }

 private:
  /// Keeps its prompt too: records are read again without the bytes of their media.
  data::Sample make_sample(int64_t index) {
    const io::Record record = records_.at(index);
    data::Sample sample = data::make_sample(processor_, record, index);
    if (settings_.answers) {
      data::Sample prompt = processor_.outline_prompt(record, index);
      const std::lock_guard lock(prompts_mutex_);
      prompts_.insert_or_assign(index, std::move(prompt));
    }
    return sample;
  }

  void skip_or_rethrow(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const UserError& bad) {
      const auto* sample = dynamic_cast<const data::SampleError*>(&bad);
      const bool is_dropped = sample != nullptr && sample->is_dropped();
      const bool fails = settings_.on_bad_sample == data::BadSamplePolicy::kFail && !is_dropped;
      if (bad.code() != ExitCode::kBadData || fails) throw;
      spdlog::warn("skipped: {}", bad.what());
      if (result_.skipped == 0) first_problem_ = bad.what();
      ++result_.skipped;
    }
  }

  void forget_prompts(const std::vector<data::Sample>& samples) {
    const std::lock_guard lock(prompts_mutex_);
    for (const data::Sample& sample : samples) prompts_.erase(sample.index);
  }

  /// In pieces of the size that memory allows.
  void score(std::span<const data::Sample> samples) {
    while (!samples.empty()) {
      const auto size = static_cast<size_t>(std::min(result_.batch_size, std::ssize(samples)));
      const auto shortage = try_score(samples.first(size), settings_.layout);
      if (!shortage) {
        samples = samples.subspan(size);
        continue;
      }
      ++result_.oom_splits;
      if (size > 1) {
        result_.batch_size = static_cast<int64_t>(size + 1) / 2;
        tell(report::EventKind::kOomSplit,
             fmt::format("evaluation: memory ran out ({}); it goes on with batches of {}", shortage->reason,
                         result_.batch_size),
             {});
        continue;
      }
      if (const auto still = try_score(samples.first(1), engine::kLeastEvaluationLayout))
        left_out_.push_back(samples.front().id);
      samples = samples.subspan(1);
    }
  }

  /// Counts nothing where memory ran out.
  std::optional<memory::Shortage> try_score(std::span<const data::Sample> samples,
                                            const engine::EvaluationLayout& layout) {
    try {
      std::vector<data::Sample> prompts;
      for (const auto& sample : samples) {
        if (!settings_.answers) break;
        const std::lock_guard lock(prompts_mutex_);
        prompts.push_back(prompts_.at(sample.index));
      }
      const auto scored =
          engine::evaluate_batch(model_, {samples.begin(), samples.end()}, std::move(prompts), layout, generation_);
      for (size_t i = 0; i < samples.size(); ++i) {
        add_loss(samples[i], scored.losses[i]);
        auto masks =
            samples[i].masks.empty() ? std::vector<DrawnMask>{} : score_masks(samples[i], scored.mask_logits[i]);
        if (settings_.answers) count(samples[i], scored.answers[i], std::move(masks));
      }
      return std::nullopt;
    } catch (const std::exception& error) {
      auto shortage = memory::shortage_in(error);
      if (!shortage) throw;
      if (shortage->of != memory::Scarce::kDevice) memory::release_pinned(settings_.device);
      memory::release_unused(settings_.device);
      return shortage;
    }
  }

  io::Record record_of(const data::Sample& sample) const { return records_.text_at(sample.index); }

  void add_loss(const data::Sample& sample, double loss) {
    const auto add = [&](TaskScore& score) {
      ++score.with_loss;
      score.loss_sum += loss;
      score.label_tokens += sample.label_tokens();
    };
    add(result_.total);
    if (const auto& task = record_of(sample).task; !task.empty()) add(result_.by_task[task]);
  }

  /// Counts them, and hands them out.
  std::vector<DrawnMask> score_masks(const data::Sample& sample, const at::Tensor& logits) {
    const io::Record record = records_.at(sample.index);
    const std::vector<at::Tensor> truths = processor_.masks_of(record);
    const data::Masks& masks = sample.masks;
    std::vector<DrawnMask> drawn;
    for (size_t i = 0; i < truths.size(); ++i) {
      const at::Tensor& truth = truths[i];
      const at::Tensor mask = mask_in_picture(logits[static_cast<int64_t>(i)], masks.pixels.size(-1), masks.filled[i],
                                              {.height = truth.size(0), .width = truth.size(1)});
      const MaskScore score = score_mask(mask, truth);
      result_.masks.add(score, record.task, masks.structures[i]);
      drawn.push_back({.structure = masks.structures[i],
                       .image = record.masks[i].image,
                       .drawn = mask,
                       .truth = truth,
                       .dice = score.dice});
    }
    return drawn;
  }

  void tell(report::EventKind kind, const std::string& message, std::vector<std::string> ids) const {
    if (settings_.on_event) {
      settings_.on_event(kind, message, std::move(ids));
    } else {
      spdlog::warn("{}", message);
    }
  }

  void tell_of_left_out() {
    result_.left_out = std::ssize(left_out_);
    if (left_out_.empty()) return;
    constexpr size_t kMostNamed = 5;
    const auto named = std::span(left_out_).first(std::min(kMostNamed, left_out_.size()));
    tell(report::EventKind::kAnomaly,
         fmt::format("evaluation: {} left out, since even alone there is no memory for {}: {}{}",
                     counted(result_.left_out, "sample"), left_out_.size() == 1 ? "it" : "them", fmt::join(named, ", "),
                     left_out_.size() > kMostNamed ? ", …" : ""),
         left_out_);
  }

  void count(const data::Sample& sample, const std::vector<int64_t>& answer_ids, std::vector<DrawnMask> masks) {
    const auto& record = record_of(sample);
    if (record.turns.back().role != io::Role::kAssistant) return;  // there is nothing to compare with
    const Answer answer{record.id,
                        record.task,
                        question_of(record),
                        trimmed(record.turns.back().text),
                        trimmed(processor_.tokenizer().decode(answer_ids, /*skip_special_tokens=*/true)),
                        answer_type_of(record),
                        std::move(masks),
                        sample.index};
    const bool exact = answer.expected == answer.given;
    const auto add = [exact](TaskScore& score) {
      ++score.samples;
      score.exact += exact ? 1 : 0;
    };
    add(result_.total);
    if (!record.task.empty()) add(result_.by_task[record.task]);
    if (answer.type == AnswerType::kClosed) {
      result_.closed.add(answer.expected, answer.given);
    } else {
      result_.open.add(answer.expected, answer.given);
    }
    if (on_answer_) on_answer_(answer);
  }

  const models::VisionLanguageModel& model_;
  const models::Processor& processor_;
  const io::Records& records_;
  const EvaluationSettings& settings_;
  engine::GenerateSettings generation_;
  const std::function<void(const Answer&)>& on_answer_;
  Evaluation result_;
  std::string first_problem_;
  std::vector<std::string> left_out_;  // ids
  std::mutex prompts_mutex_;
  std::map<int64_t, data::Sample> prompts_;  // without pixels, of samples that are not scored yet; guarded by the mutex
};

}  // namespace

report::EvaluationScore TaskScore::metrics() const {
  return {.loss = label_tokens > 0 ? loss() : std::numeric_limits<double>::quiet_NaN(),
          .label_tokens = label_tokens,
          .samples = with_loss,
          .exact_match = samples > 0 ? std::optional(exact_match()) : std::nullopt};
}

namespace {

std::optional<report::MaskMetrics> metrics_of(const MaskScoreSums& sums) {
  if (sums.masks == 0) return std::nullopt;
  return report::MaskMetrics{.masks = sums.masks,
                             .dice = sums.dice(),
                             .iou = sums.iou(),
                             .hausdorff95 = sums.hausdorff95(),
                             .empty_truths = sums.empty_truths,
                             .empty_drawn = sums.empty_drawn};
}

/// MaskMetrics with "by_task" and "by_structure". Of one mask at least, as all parts of such scores are.
nlohmann::ordered_json masks_json(const MaskScores& scores) {
  auto json = metrics_of(scores.total())->to_json();
  json["by_task"] = json["by_structure"] = nlohmann::ordered_json::object();
  for (const auto& [name, sums] : scores.by_task()) json["by_task"][name] = metrics_of(sums)->to_json();
  for (const auto& [name, sums] : scores.by_structure()) json["by_structure"][name] = metrics_of(sums)->to_json();
  return json;
}

}  // namespace

report::EvaluationMetrics Evaluation::metrics(bool has_values) const {
  report::EvaluationMetrics metrics{.total = total.metrics(),
                                    .tasks = {},
                                    .structures = {},
                                    .seconds = seconds,
                                    .batch_size = batch_size,
                                    .oom_splits = oom_splits};
  for (const auto& [task, score] : by_task) metrics.tasks[task] = score.metrics();
  metrics.total.masks = metrics_of(masks.total());
  for (const auto& [task, sums] : masks.by_task()) metrics.tasks[task].masks = metrics_of(sums);
  for (const auto& [name, sums] : masks.by_structure()) metrics.structures[name] = *metrics_of(sums);
  if (has_values) return metrics;
  metrics.total.masks.reset();
  metrics.structures.clear();
  metrics.total.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.total.exact_match.reset();
  metrics.tasks.clear();
  return metrics;
}

std::string Evaluation::to_json() const {
  nlohmann::ordered_json tasks = nlohmann::ordered_json::object();
  for (const auto& [task, score] : by_task) {
    tasks[task] = {{"samples", score.samples},
                   {"exact_match", score.exact_match()},
                   {"loss", score.loss()},
                   {"label_tokens", score.label_tokens}};
  }
  nlohmann::ordered_json json{{"loss", total.loss()},
                              {"label_tokens", total.label_tokens},
                              {"samples", total.samples},
                              {"exact_match", total.exact_match()},
                              {"closed", {{"samples", closed.samples}, {"accuracy", closed.accuracy()}}},
                              {"open",
                               {{"samples", open.samples},
                                {"exact_match", open.exact_match()},
                                {"recall", open.recall()},
                                {"precision", open.precision()},
                                {"f1", open.f1()}}},
                              {"skipped", skipped},
                              {"left_out", left_out},
                              {"batch_size", batch_size},
                              {"oom_splits", oom_splits},
                              {"seconds", seconds},
                              {"by_task", tasks},
                              {"notices", notices.to_json()}};
  if (masks.total().masks > 0) json["masks"] = masks_json(masks);
  return io::json_text(json);
}

Evaluation evaluate(const models::VisionLanguageModel& model, const models::Processor& processor,
                    const io::Records& records, const EvaluationSettings& settings,
                    const std::function<void(const Answer&)>& on_answer) {
  return Evaluator(model, processor, records, settings, on_answer).run();
}

}  // namespace vlmtrain::evaluation
