#include "train/loop/sample_predictions.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "train/data_check/run_records.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/evaluation/evaluated_answer.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/memory/out_of_memory.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/report/json_lines.h"

namespace vlmtrain::train {

namespace {

/// Maximum number of tokens per answer. The report shows about as much; longer answers would use up
/// the share of time. Not tuned.
constexpr int64_t kMaxNewTokens = 64;
/// Maximum number of masks per answer in the report. Not tuned.
constexpr size_t kMaxMasksPerAnswer = 6;

std::vector<report::PredictedMask> make_mask_overlays(const io::Record& record,
                                                      const std::vector<evaluation::MaskPrediction>& masks) {
  std::vector<report::PredictedMask> mask_overlays;
  for (const auto& mask : masks) {
    if (mask_overlays.size() == kMaxMasksPerAnswer) break;
    try {
      const at::Tensor image = image::decode_image(record.images.at(static_cast<size_t>(mask.image_index)));
      mask_overlays.push_back({.structure = mask.structure,
                               .dice = mask.dice,
                               .overlay_uri = report::make_overlay_uri(image, mask.predicted_mask, mask.true_mask)});
    } catch (const std::exception&) {
      continue;  // the report shows no mask then
    }
  }
  return mask_overlays;
}

std::optional<report::PredictedBoxes> make_box_overlay(const io::Record& record,
                                                       const std::optional<evaluation::BoxComparison>& boxes) {
  if (!boxes) return std::nullopt;
  try {
    const at::Tensor image = image::decode_image(record.images.at(static_cast<size_t>(boxes->image_index)));
    return report::PredictedBoxes{
        .iou = boxes->iou,
        .overlay_uri = report::make_box_overlay_uri(image, boxes->predicted_boxes, boxes->true_boxes)};
  } catch (const std::exception&) {
    return std::nullopt;  // the report shows no boxes then
  }
}

}  // namespace

SamplePredictions::SamplePredictions(const io::Records& records, int64_t count,
                                     const models::VisionLanguageModel& model, const models::Processor& processor,
                                     double time_share, const std::filesystem::path& run_folder,
                                     CallbackList& callbacks)
    : model_(model), processor_(processor), max_time_share_(time_share), callbacks_(callbacks) {
  for (const int64_t index : select_evenly_spaced_indices(records, count)) records_.push_back(records.at(index));
  settings_.batch_size = 1;  // for minimum memory
  settings_.max_new_tokens = kMaxNewTokens;
  settings_.on_bad_sample = data::BadSamplePolicy::kSkip;
  settings_.on_event = [this](report::EventKind /*kind*/, const std::string& message,
                              const std::vector<std::string>& /*ids*/) { report_out_of_memory(message); };
  report::read_json_lines(run_folder / "predictions.jsonl", [this](const nlohmann::json& line) {
    const auto id = line.find("id");
    if (id == line.end() || !id->is_string()) return;
    const auto it = std::ranges::find(records_, id->get_ref<const std::string&>(), &io::Record::id);
    if (it != records_.end()) next_record_index_ = static_cast<size_t>(it - records_.begin()) + 1;
    last_prediction_step_ = std::max(last_prediction_step_, line.value("step", int64_t{-1}));
  });
}

void SamplePredictions::add_logged_step(const nlohmann::json& line) {
  const auto seconds = line.find("step_seconds");
  if (seconds == line.end() || !seconds->is_number() || line.value("step", int64_t{0}) <= last_prediction_step_) return;
  earlier_process_seconds_ += seconds->get<double>();
}

void SamplePredictions::predict_with_loaded_checkpoint(int64_t step) {
  if (last_prediction_step_ < step) predict_records(step);
}

void SamplePredictions::start_clock() {
  first_step_time_ = Clock::now();
}

void SamplePredictions::on_checkpoint_saved(int64_t step) {
  saved_step_ = step;
  // After a late evaluation the same step is saved again, but not answered again.
  if (last_prediction_step_ < step) predict_records(step);
}

void SamplePredictions::finish() {
  if (last_prediction_step_ < saved_step_ && !records_.empty()) predict_next_record(saved_step_);
}

double SamplePredictions::get_elapsed_seconds() const {
  if (!first_step_time_) return earlier_process_seconds_ + prediction_seconds_;
  return earlier_process_seconds_ + std::chrono::duration<double>(Clock::now() - *first_step_time_).count();
}

bool SamplePredictions::has_remaining_time() const {
  if (max_time_share_ >= 1) return true;
  if (num_predictions_ == 0) return max_time_share_ > 0;  // the duration of an answer is unknown
  // Assumes that the next answer takes the mean duration.
  return prediction_seconds_ * static_cast<double>(num_predictions_ + 1) / static_cast<double>(num_predictions_) <=
         max_time_share_ * get_elapsed_seconds();
}

void SamplePredictions::predict_records(int64_t step) {
  const size_t num_records = records_.size();
  for (size_t num_predicted = 0; num_predicted < num_records && !records_.empty(); ++num_predicted) {
    if (!has_remaining_time()) {
      report_fewer_predictions(step, num_predicted);
      return;
    }
    if (!predict_next_record(step)) return;
  }
}

bool SamplePredictions::predict_next_record(int64_t step) {
  next_record_index_ %= records_.size();
  const io::Record& record = records_[next_record_index_];
  const auto on_answer = [&](const evaluation::EvaluatedAnswer& answer) {
    callbacks_.on_prediction({.step = step,
                              .id = answer.id,
                              .task = answer.task,
                              .question = answer.question,
                              .expected_answer = answer.expected,
                              .answer = answer.prediction,
                              .thumbnail_uris = get_or_make_thumbnails(record).images,
                              .volume_captions = get_or_make_thumbnails(record).captions,
                              .masks = make_mask_overlays(record, answer.masks),
                              .boxes = make_box_overlay(record, answer.boxes)});
  };
  last_prediction_step_ = step;
  const auto start = Clock::now();
  try {
    if (evaluation::evaluate(model_, processor_, io::InMemoryRecords({record}), settings_, on_answer)
            .num_dropped_samples > 0)
      return false;
  } catch (const UserError& error) {
    if (error.code() != ExitCode::kBadData) throw;
    // The evaluation has logged the reason.
    records_.erase(records_.begin() + static_cast<std::ptrdiff_t>(next_record_index_));
    return true;
  } catch (const std::exception& error) {
    const auto out_of_memory = memory::detect_out_of_memory(error);
    if (!out_of_memory) throw;
    report_out_of_memory(out_of_memory->reason);
    return false;
  }
  prediction_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
  ++num_predictions_;
  ++next_record_index_;
  return true;
}

void SamplePredictions::report_out_of_memory(const std::string& reason) {
  callbacks_.on_event({.step = last_prediction_step_,
                       .kind = report::EventKind::kAnomaly,
                       .message = fmt::format("step {}: out of memory for the sample answers of this checkpoint ({})",
                                              last_prediction_step_, reason)});
}

void SamplePredictions::report_fewer_predictions(int64_t step, size_t num_predicted) {
  if (std::exchange(has_reported_fewer_predictions_, true)) return;
  callbacks_.on_event(
      {.step = step,
       .kind = report::EventKind::kFewerPredictions,
       .message = fmt::format("step {}: only {} of the {} sample answers are generated at each checkpoint, in turn, "
                              "because they took {:.1f} s of {:.1f} s; increase {} (now {}) for more",
                              step, num_predicted, records_.size(), prediction_seconds_, get_elapsed_seconds(),
                              keys::output::kSamplePredictionsShare, max_time_share_)});
}

const SamplePredictions::Thumbnails& SamplePredictions::get_or_make_thumbnails(const io::Record& record) {
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
