#include "report/run/run_events.h"

#include <algorithm>
#include <vector>

#include "vlmtrain/io/json.h"
#include "vlmtrain/report/json_lines.h"

namespace vlmtrain::report {

namespace {

/// Limits that keep the page small: an event takes at most about 6 kB. Not tuned.
constexpr size_t kMaxEventsPerKind = 40;
constexpr size_t kMaxEventKinds = 40;
constexpr size_t kMaxShownIds = 8;
constexpr size_t kMaxMessageBytes = 600;

}  // namespace

void RunEvents::add(const nlohmann::json& line) {
  const std::string kind = get_string_or_empty(line, "kind");
  if (kind.empty()) return;
  const int64_t step = get_integer_or_zero(line, "step");
  const double time = get_number_or_nan(line, "time");
  if (time > last_event_time_) last_event_time_ = time;
  const std::string message = truncate_utf8(get_string_or_empty(line, "message"), kMaxMessageBytes);
  if (kind == "stopped" || kind == "failed") {
    end_state_ = kind;
    end_step_ = step;
    end_message_ = message;
  } else if (kind == "resumed") {
    end_state_.clear();
  }
  if (event_counts_.size() >= kMaxEventKinds && !event_counts_.contains(kind)) return;
  ++event_counts_[kind];

  auto ids = nlohmann::json::array();
  size_t num_hidden_ids = 0;
  if (const auto ids_entry = line.find("ids"); ids_entry != line.end() && ids_entry->is_array()) {
    for (const auto& id : *ids_entry) {
      if (id.is_string() && ids.size() < kMaxShownIds)
        ids.push_back(truncate_utf8(id.get<std::string>(), kMaxMessageBytes));
    }
    num_hidden_ids = ids_entry->size() - ids.size();
  }
  auto& events = newest_events_[kind];
  events.push_back({{"number", next_event_number_++},
                    {"step", step},
                    {"time", time},
                    {"kind", kind},
                    {"message", message},
                    {"ids", std::move(ids)},
                    {"more_ids", num_hidden_ids}});
  if (events.size() > kMaxEventsPerKind) events.pop_front();
}

nlohmann::json RunEvents::to_json() const {
  std::vector<const nlohmann::json*> events;
  for (const auto& [kind, newest] : newest_events_) {
    for (const auto& event : newest) events.push_back(&event);
  }
  std::sort(events.begin(), events.end(), [](const auto* a, const auto* b) { return (*a)["number"] > (*b)["number"]; });
  auto shown_events = nlohmann::json::array();
  for (const auto* event : events) shown_events.push_back(*event);
  return {{"counts", event_counts_}, {"shown", std::move(shown_events)}};
}

namespace {

/// Limits that keep the page small. Not tuned.
constexpr size_t kMaxPredictedSamples = 24;
/// Answers kept per sample: the first, which shows the state before training, and the newest.
constexpr size_t kMaxAnswersPerSample = 4;
constexpr size_t kMaxImagesPerSample = 6;
/// Maximum length of a data URI, about ten times the length of a thumbnail with 160 pixels.
constexpr size_t kMaxImageUriBytes = 200'000;
constexpr size_t kMaxTextBytes = 2000;

std::string get_truncated_string(const nlohmann::json& line, const char* key) {
  return truncate_utf8(get_string_or_empty(line, key), kMaxTextBytes);
}

/// Returns whether the URI contains a small image, so that the page loads nothing from elsewhere.
bool is_image_uri(const std::string& uri) {
  constexpr std::string_view kImageUriPrefixes[] = {"data:image/jpeg;base64,", "data:image/png;base64,"};
  for (const auto prefix : kImageUriPrefixes) {
    if (uri.starts_with(prefix)) return uri.size() <= kMaxImageUriBytes;
  }
  return false;
}

/// Returns the valid masks as {"structure", "dice", "overlay"}; null without masks.
nlohmann::json make_valid_masks_json(const nlohmann::json& line) {
  nlohmann::json masks_json;
  const auto masks = line.find("masks");
  if (masks == line.end() || !masks->is_array()) return masks_json;
  for (const auto& mask : *masks) {
    if (masks_json.size() == kMaxImagesPerSample) break;
    auto overlay_uri = get_string_or_empty(mask, "overlay");
    if (!is_image_uri(overlay_uri)) continue;
    masks_json.push_back({{"structure", get_truncated_string(mask, "structure")},
                          {"dice", get_number_or_nan(mask, "dice")},
                          {"overlay", std::move(overlay_uri)}});
  }
  return masks_json;
}

/// Returns the valid boxes as {"iou", "overlay"}; null without boxes.
nlohmann::json make_valid_boxes_json(const nlohmann::json& line) {
  const auto boxes = line.find("boxes");
  if (boxes == line.end() || !boxes->is_object()) return {};
  auto overlay_uri = get_string_or_empty(*boxes, "overlay");
  if (!is_image_uri(overlay_uri)) return {};
  return {{"iou", get_number_or_nan(*boxes, "iou")}, {"overlay", std::move(overlay_uri)}};
}

}  // namespace

void RunPredictions::add(const nlohmann::json& line) {
  const std::string id = get_string_or_empty(line, "id");
  const std::string question = get_truncated_string(line, "question");
  const Answer answer{get_integer_or_zero(line, "step"),
                      get_truncated_string(line, io::find_field_name(line, {"answer", "given"})),
                      make_valid_masks_json(line), make_valid_boxes_json(line)};
  const auto sample_entry = std::find_if(samples_.begin(), samples_.end(), [&](const PredictedSample& sample) {
    return sample.id == id && sample.question == question;
  });
  if (sample_entry != samples_.end()) {
    auto& answers = sample_entry->answers;
    answers.push_back(answer);
    if (answers.size() > kMaxAnswersPerSample) answers.erase(answers.begin() + 1);
    return;
  }
  PredictedSample sample{.id = id,
                         .task = get_truncated_string(line, "task"),
                         .question = question,
                         .expected = get_truncated_string(line, "expected"),
                         .images = {},
                         .captions = {},
                         .answers = {answer}};
  add_images(line, sample);
  samples_.push_back(std::move(sample));
  if (samples_.size() > kMaxPredictedSamples) {
    // Drops the sample whose newest answer is the oldest.
    samples_.erase(
        std::min_element(samples_.begin(), samples_.end(), [](const PredictedSample& a, const PredictedSample& b) {
          return a.answers.back().step < b.answers.back().step;
        }));
    ++num_hidden_samples_;
  }
}

void RunPredictions::add_images(const nlohmann::json& line, PredictedSample& sample) {
  const auto images = line.find("images");
  if (images == line.end() || !images->is_array()) return;
  const auto captions = line.find("captions");
  const bool has_captions = captions != line.end() && captions->is_array() && captions->size() == images->size();
  for (size_t i = 0; i < images->size() && sample.images.size() < kMaxImagesPerSample; ++i) {
    const auto& image = (*images)[i];
    if (!image.is_string() || !is_image_uri(image.get_ref<const std::string&>())) continue;
    sample.images.push_back(image);
    if (!has_captions) continue;
    const auto& caption = (*captions)[i];
    sample.captions.push_back(caption.is_string() ? truncate_utf8(caption.get<std::string>(), kMaxTextBytes) : "");
  }
}

nlohmann::json RunPredictions::to_json() const {
  auto samples = nlohmann::json::array();
  for (const auto& sample : samples_) {
    auto answers = nlohmann::json::array();
    for (const auto& answer : sample.answers) {
      auto& answer_json = answers.emplace_back(nlohmann::json{{"step", answer.step}, {"answer", answer.text}});
      if (!answer.masks.is_null()) answer_json["masks"] = answer.masks;
      if (!answer.boxes.is_null()) answer_json["boxes"] = answer.boxes;
    }
    samples.push_back({{"id", sample.id},
                       {"task", sample.task},
                       {"question", sample.question},
                       {"expected", sample.expected},
                       {"images", sample.images},
                       {"answers", std::move(answers)}});
    if (!sample.captions.empty()) samples.back()["captions"] = sample.captions;
  }
  return {{"samples", std::move(samples)}, {"hidden", num_hidden_samples_}};
}

}  // namespace vlmtrain::report
