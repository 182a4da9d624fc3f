#include "train/sample_predictions.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/io/scan_name.h"
#include "vlmtrain/memory/shortage.h"
#include "vlmtrain/report/run_lines.h"

namespace vlmtrain::train {

namespace {

constexpr int64_t kMostNewTokens = 64;
/// As many as the report shows of an answer.
constexpr size_t kMostMasks = 6;

std::vector<report::PredictedMask> overlays_of(const io::Record& record,
                                               const std::vector<evaluation::DrawnMask>& masks) {
  std::vector<report::PredictedMask> overlays;
  for (const auto& mask : masks) {
    if (overlays.size() == kMostMasks) break;
    try {
      const at::Tensor picture = image::decode_image(record.images.at(static_cast<size_t>(mask.image)));
      overlays.push_back({.structure = mask.structure,
                          .dice = mask.dice,
                          .overlay = report::overlay_data_uri(picture, mask.drawn, mask.truth)});
    } catch (const std::exception&) {
      continue;  // the report then shows the words alone
    }
  }
  return overlays;
}

}  // namespace

SamplePredictions::SamplePredictions(const io::Records& records, int64_t count,
                                     const models::VisionLanguageModel& model, const models::Processor& processor,
                                     at::Device device, double share, const std::filesystem::path& run_folder,
                                     CallbackList& callbacks)
    : model_(model), processor_(processor), share_(share), callbacks_(callbacks) {
  for (const int64_t place : spread(records, count)) records_.push_back(records.at(place));
  settings_.device = device;
  settings_.batch_size = 1;  // as little memory as can be
  settings_.max_new_tokens = kMostNewTokens;
  settings_.on_bad_sample = data::BadSamplePolicy::kSkip;
  settings_.on_event = [this](report::EventKind /*kind*/, const std::string& message,
                              const std::vector<std::string>& /*ids*/) { tell_of_shortage(message); };
  report::read_lines(run_folder / "predictions.jsonl", [this](const nlohmann::json& line) {
    const auto id = line.find("id");
    if (id == line.end() || !id->is_string()) return;
    const auto asked = std::ranges::find(records_, id->get_ref<const std::string&>(), &io::Record::id);
    if (asked != records_.end()) next_ = static_cast<size_t>(asked - records_.begin()) + 1;
    answered_step_ = std::max(answered_step_, line.value("step", int64_t{-1}));
  });
}

void SamplePredictions::past_step(const nlohmann::json& line) {
  const auto seconds = line.find("step_seconds");
  if (seconds == line.end() || !seconds->is_number() || line.value("step", int64_t{0}) <= answered_step_) return;
  past_seconds_ += seconds->get<double>();
}

void SamplePredictions::resume(int64_t step) {
  if (answered_step_ < step) answer(step);
}

void SamplePredictions::begin() {
  first_step_ = Clock::now();
}

void SamplePredictions::after_checkpoint(int64_t step) {
  saved_step_ = step;
  // It is saved again where an evaluation was made up.
  if (answered_step_ < step) answer(step);
}

void SamplePredictions::finish() {
  if (answered_step_ < saved_step_ && !records_.empty()) answer_next(saved_step_);
}

double SamplePredictions::seconds_so_far() const {
  if (!first_step_) return past_seconds_ + answer_seconds_;
  return past_seconds_ + std::chrono::duration<double>(Clock::now() - *first_step_).count();
}

bool SamplePredictions::is_time_left() const {
  if (share_ >= 1) return true;
  if (answers_ == 0) return share_ > 0;  // nobody knows yet what one takes
  return answer_seconds_ * static_cast<double>(answers_ + 1) / static_cast<double>(answers_) <=
         share_ * seconds_so_far();
}

void SamplePredictions::answer(int64_t step) {
  const size_t wanted = records_.size();
  for (size_t asked = 0; asked < wanted && !records_.empty(); ++asked) {
    if (!is_time_left()) {
      tell_of_fewer(step, asked);
      return;
    }
    if (!answer_next(step)) return;
  }
}

bool SamplePredictions::answer_next(int64_t step) {
  next_ %= records_.size();
  const io::Record& record = records_[next_];
  const auto on_answer = [&](const evaluation::Answer& answer) {
    callbacks_.prediction({.step = step,
                           .id = answer.id,
                           .task = answer.task,
                           .question = answer.question,
                           .expected = answer.expected,
                           .given = answer.given,
                           .images = thumbnails(record).images,
                           .captions = thumbnails(record).captions,
                           .masks = overlays_of(record, answer.masks)});
  };
  answered_step_ = step;
  const auto start = Clock::now();
  try {
    if (evaluation::evaluate(model_, processor_, io::RecordList({record}), settings_, on_answer).left_out > 0)
      return false;
  } catch (const UserError& error) {
    if (error.code() != ExitCode::kBadData) throw;
    // The log says why it cannot be used.
    records_.erase(records_.begin() + static_cast<std::ptrdiff_t>(next_));
    return true;
  } catch (const std::exception& error) {
    const auto shortage = memory::shortage_in(error);
    if (!shortage) throw;
    tell_of_shortage(shortage->reason);
    return false;
  }
  answer_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
  ++answers_;
  ++next_;
  return true;
}

void SamplePredictions::tell_of_shortage(const std::string& reason) {
  callbacks_.event({.step = answered_step_,
                    .kind = report::EventKind::kAnomaly,
                    .message = fmt::format("step {}: no memory for the sample answers of this checkpoint ({})",
                                           answered_step_, reason)});
}

void SamplePredictions::tell_of_fewer(int64_t step, size_t answered) {
  if (std::exchange(has_told_, true)) return;
  callbacks_.event(
      {.step = step,
       .kind = report::EventKind::kFewerAnswers,
       .message = fmt::format("step {}: {} of the {} sample answers are made at this checkpoint, for they have taken "
                              "{:.1f} s of {:.1f} s so far (output.sample_predictions_share is {}); the samples take "
                              "turns from here on",
                              step, answered, records_.size(), answer_seconds_, seconds_so_far(), share_)});
}

const SamplePredictions::Thumbnails& SamplePredictions::thumbnails(const io::Record& record) {
  const auto [entry, added] = thumbnails_.try_emplace(record.id);
  Thumbnails& shown = entry->second;
  if (!added) return shown;
  bool has_volume = false;
  for (size_t place = 0; place < record.images.size(); ++place) {
    const io::Medium& image = record.images[place];
    try {
      shown.images.push_back(report::thumbnail_data_uri(image));
    } catch (const std::exception&) {
      continue;  // the report then shows the words alone
    }
    const std::string name = image.is_volume ? io::scan_name(record, place) : "";
    shown.captions.push_back(image.is_volume && name.empty() ? fmt::format("volume {}", place + 1) : name);
    has_volume |= image.is_volume;
  }
  if (!has_volume) shown.captions.clear();
  return shown;
}

std::vector<int64_t> spread(const io::Records& records, int64_t count) {
  std::vector<int64_t> chosen;
  const int64_t wanted = std::min(count, records.size());
  RandomStream random(stream_seed(0, "sample predictions"));
  for (int64_t i = 0; i < wanted; ++i) {
    const int64_t first = i * records.size() / wanted;
    const int64_t next = (i + 1) * records.size() / wanted;
    const auto place = first + static_cast<int64_t>(random.below(static_cast<uint64_t>(next - first)));
    if (records.text_at(place).problem.empty()) chosen.push_back(place);
  }
  return chosen;
}

}  // namespace vlmtrain::train
