#include "train/loop/sample_predictions.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "train/data_check/evaluation_set.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/memory/out_of_memory.h"
#include "vlmtrain/report/json_lines.h"

namespace vlmtrain::train {

namespace {

/// Maximum number of tokens per answer. The report shows about as much; longer answers would use up
/// the share of time. Not tuned.
constexpr int64_t kMaxNewTokens = 64;
/// Maximum number of masks per answer in the report. Not tuned.
constexpr size_t kMaxMasks = 6;

std::vector<report::PredictedMask> make_overlays(const io::Record& record,
                                                 const std::vector<evaluation::MaskPrediction>& masks) {
  std::vector<report::PredictedMask> overlays;
  for (const auto& mask : masks) {
    if (overlays.size() == kMaxMasks) break;
    try {
      const at::Tensor image = image::decode_image(record.images.at(static_cast<size_t>(mask.image)));
      overlays.push_back({.structure = mask.structure,
                          .dice = mask.dice,
                          .overlay = report::make_overlay_uri(image, mask.predicted, mask.truth)});
    } catch (const std::exception&) {
      continue;  // the report shows no mask then
    }
  }
  return overlays;
}

}  // namespace

SamplePredictions::SamplePredictions(const io::Records& records, int64_t count,
                                     const models::VisionLanguageModel& model, const models::Processor& processor,
                                     at::Device device, double time_share, const std::filesystem::path& run_folder,
                                     CallbackList& callbacks)
    : model_(model), processor_(processor), time_share_(time_share), callbacks_(callbacks) {
  for (const int64_t index : sample_records_evenly(records, count)) records_.push_back(records.at(index));
  settings_.device = device;
  settings_.batch_size = 1;  // for minimum memory
  settings_.max_new_tokens = kMaxNewTokens;
  settings_.on_bad_sample = data::BadSamplePolicy::kSkip;
  settings_.on_event = [this](report::EventKind /*kind*/, const std::string& message,
                              const std::vector<std::string>& /*ids*/) { report_out_of_memory(message); };
  report::read_json_lines(run_folder / "predictions.jsonl", [this](const nlohmann::json& line) {
    const auto id = line.find("id");
    if (id == line.end() || !id->is_string()) return;
    const auto it = std::ranges::find(records_, id->get_ref<const std::string&>(), &io::Record::id);
    if (it != records_.end()) next_record_ = static_cast<size_t>(it - records_.begin()) + 1;
    answered_step_ = std::max(answered_step_, line.value("step", int64_t{-1}));
  });
}

void SamplePredictions::add_past_step(const nlohmann::json& line) {
  const auto seconds = line.find("step_seconds");
  if (seconds == line.end() || !seconds->is_number() || line.value("step", int64_t{0}) <= answered_step_) return;
  past_seconds_ += seconds->get<double>();
}

void SamplePredictions::answer_loaded_checkpoint(int64_t step) {
  if (answered_step_ < step) answer_records(step);
}

void SamplePredictions::start_clock() {
  first_step_ = Clock::now();
}

void SamplePredictions::on_checkpoint_saved(int64_t step) {
  saved_step_ = step;
  // After a late evaluation the same step is saved again, but not answered again.
  if (answered_step_ < step) answer_records(step);
}

void SamplePredictions::finish() {
  if (answered_step_ < saved_step_ && !records_.empty()) answer_next_record(saved_step_);
}

double SamplePredictions::get_elapsed_seconds() const {
  if (!first_step_) return past_seconds_ + answer_seconds_;
  return past_seconds_ + std::chrono::duration<double>(Clock::now() - *first_step_).count();
}

bool SamplePredictions::has_remaining_time() const {
  if (time_share_ >= 1) return true;
  if (num_answers_ == 0) return time_share_ > 0;  // the duration of an answer is unknown
  // Assumes that the next answer takes the mean duration.
  return answer_seconds_ * static_cast<double>(num_answers_ + 1) / static_cast<double>(num_answers_) <=
         time_share_ * get_elapsed_seconds();
}

void SamplePredictions::answer_records(int64_t step) {
  const size_t num_records = records_.size();
  for (size_t num_answered = 0; num_answered < num_records && !records_.empty(); ++num_answered) {
    if (!has_remaining_time()) {
      report_fewer_answers(step, num_answered);
      return;
    }
    if (!answer_next_record(step)) return;
  }
}

bool SamplePredictions::answer_next_record(int64_t step) {
  next_record_ %= records_.size();
  const io::Record& record = records_[next_record_];
  const auto on_answer = [&](const evaluation::Answer& answer) {
    callbacks_.on_prediction({.step = step,
                              .id = answer.id,
                              .task = answer.task,
                              .question = answer.question,
                              .expected = answer.expected,
                              .answer = answer.prediction,
                              .images = get_thumbnails(record).images,
                              .captions = get_thumbnails(record).captions,
                              .masks = make_overlays(record, answer.masks)});
  };
  answered_step_ = step;
  const auto start = Clock::now();
  try {
    if (evaluation::evaluate(model_, processor_, io::InMemoryRecords({record}), settings_, on_answer).num_dropped > 0)
      return false;
  } catch (const UserError& error) {
    if (error.code() != ExitCode::kBadData) throw;
    // The evaluation has logged the reason.
    records_.erase(records_.begin() + static_cast<std::ptrdiff_t>(next_record_));
    return true;
  } catch (const std::exception& error) {
    const auto out_of_memory = memory::detect_out_of_memory(error);
    if (!out_of_memory) throw;
    report_out_of_memory(out_of_memory->reason);
    return false;
  }
  answer_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
  ++num_answers_;
  ++next_record_;
  return true;
}

void SamplePredictions::report_out_of_memory(const std::string& reason) {
  callbacks_.on_event({.step = answered_step_,
                       .kind = report::EventKind::kAnomaly,
                       .message = fmt::format("step {}: out of memory for the sample answers of this checkpoint ({})",
                                              answered_step_, reason)});
}

void SamplePredictions::report_fewer_answers(int64_t step, size_t num_answered) {
  if (std::exchange(has_reported_fewer_answers_, true)) return;
  callbacks_.on_event(
      {.step = step,
       .kind = report::EventKind::kFewerPredictions,
       .message = fmt::format(
           "step {}: {} of the {} sample answers are generated at this checkpoint, since they took {:.1f} s of {:.1f} "
           "s so far (output.sample_predictions_share is {}); the samples take turns from now on",
           step, num_answered, records_.size(), answer_seconds_, get_elapsed_seconds(), time_share_)});
}

const SamplePredictions::Thumbnails& SamplePredictions::get_thumbnails(const io::Record& record) {
  const auto [entry, added] = thumbnails_.try_emplace(record.id);
  Thumbnails& result = entry->second;
  if (!added) return result;
  bool has_volume = false;
  for (size_t index = 0; index < record.images.size(); ++index) {
    const io::MediaRef& image = record.images[index];
    try {
      result.images.push_back(report::make_thumbnail_uri(image));
    } catch (const std::exception&) {
      continue;  // the report shows no image then
    }
    const std::string name = image.is_volume ? io::describe_volume(record, index) : "";
    result.captions.push_back(image.is_volume && name.empty() ? fmt::format("volume {}", index + 1) : name);
    has_volume |= image.is_volume;
  }
  if (!has_volume) result.captions.clear();
  return result;
}

}  // namespace vlmtrain::train
