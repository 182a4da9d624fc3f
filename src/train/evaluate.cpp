#include "vlmtrain/train/evaluate.h"

#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/data/sample_stream.h"
#include "vlmtrain/engine/generate.h"
#include "vlmtrain/engine/step.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::train {

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
  for (const auto mark : {io::kImageMark, io::kVideoMark}) {
    for (size_t at = question.find(mark); at != std::string::npos; at = question.find(mark)) {
      question.erase(at, mark.size());
    }
  }
  return trimmed(question);
}

class Evaluator {
 public:
  Evaluator(const models::VisionLanguageModel& model, const models::Processor& processor,
            const std::vector<io::Record>& records, const EvaluationSettings& settings,
            const std::function<void(const Answer&)>& on_answer)
      : model_(model), processor_(processor), records_(records), settings_(settings), on_answer_(on_answer) {
    generation_.device = settings.device;
    generation_.max_new_tokens = settings.max_new_tokens;
    generation_.end_token_ids = settings.end_token_ids;
    if (generation_.end_token_ids.empty()) generation_.end_token_ids = {processor.end_of_turn_id()};
  }

  Evaluation run() {
    const at::NoGradGuard no_gradients;
    data::SampleStream stream(data::file_order(static_cast<int64_t>(records_.size())),
                              [this](int64_t index) { return data::make_sample(processor_, records_, index); },
                              {.workers = settings_.num_workers, .ahead = 2 * settings_.batch_size});
    std::vector<data::Sample> batch;
    while (auto item = stream.next()) {
      if (item->error) {
        skip_or_rethrow(item->error);
        continue;
      }
      batch.push_back(std::move(item->sample));
      if (static_cast<int64_t>(batch.size()) == settings_.batch_size) score(batch);
    }
    if (!batch.empty()) score(batch);
    if (result_.skipped > 0 && result_.skipped == std::ssize(records_)) {
      throw data_error("data.eval: none of the {} samples can be used; the first: {}", records_.size(), first_problem_);
    }
    if (result_.label_tokens > 0) result_.loss = loss_sum_ / static_cast<double>(result_.label_tokens);
    return result_;
  }

 private:
  void skip_or_rethrow(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const UserError& bad) {
      if (bad.code() != ExitCode::kBadData || settings_.on_bad_sample == data::BadSamplePolicy::kFail) throw;
      spdlog::warn("skipped: {}", bad.what());
      if (result_.skipped == 0) first_problem_ = bad.what();
      ++result_.skipped;
    }
  }

  /// Empties `batch`.
  void score(std::vector<data::Sample>& batch) {
    constexpr int64_t kLossChunkRows = 1024;
    const auto micro_batch = data::collate(batch).to(settings_.device);
    const at::Tensor features = model_.all_image_features({micro_batch.tiles, micro_batch.grids});
    loss_sum_ += engine::loss_of(model_, micro_batch, features, 1.0, kLossChunkRows).item<double>();
    result_.label_tokens += micro_batch.label_tokens();

    std::vector<data::Sample> prompts;
    for (const auto& sample : batch) {
      prompts.push_back(processor_.outline_prompt(records_[static_cast<size_t>(sample.index)], sample.index));
    }
    const auto answers = engine::generate(model_, std::move(prompts), features, generation_);
    for (size_t i = 0; i < batch.size(); ++i) count(batch[i], answers[i]);
    batch.clear();
  }

  void count(const data::Sample& sample, const std::vector<int64_t>& answer_ids) {
    const auto& record = records_[static_cast<size_t>(sample.index)];
    if (record.turns.back().role != io::Role::kAssistant) return;  // there is nothing to compare with
    const Answer answer{record.id,
                        record.task,
                        question_of(record),
                        trimmed(record.turns.back().text),
                        trimmed(processor_.tokenizer().decode(answer_ids, /*skip_special_tokens=*/true)),
                        answer_type_of(record)};
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
    on_answer_(answer);
  }

  const models::VisionLanguageModel& model_;
  const models::Processor& processor_;
  const std::vector<io::Record>& records_;
  const EvaluationSettings& settings_;
  engine::GenerateSettings generation_;
  const std::function<void(const Answer&)>& on_answer_;
  Evaluation result_;
  double loss_sum_ = 0;
  std::string first_problem_;
};

}  // namespace

std::string Evaluation::to_json() const {
  nlohmann::ordered_json tasks = nlohmann::ordered_json::object();
  for (const auto& [task, score] : by_task) {
    tasks[task] = {{"samples", score.samples}, {"exact_match", score.exact_match()}};
  }
  return io::json_text(
      nlohmann::ordered_json{{"loss", loss},
                             {"label_tokens", label_tokens},
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
                             {"by_task", tasks}});
}

Evaluation evaluate(const models::VisionLanguageModel& model, const models::Processor& processor,
                    const std::vector<io::Record>& records, const EvaluationSettings& settings,
                    const std::function<void(const Answer&)>& on_answer) {
  return Evaluator(model, processor, records, settings, on_answer).run();
}

}  // namespace vlmtrain::train
