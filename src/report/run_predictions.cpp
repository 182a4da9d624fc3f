#include "report/run_predictions.h"

#include <algorithm>

#include "report/json_value.h"

namespace vlmtrain::report {

namespace {

constexpr size_t kMostSamples = 24;
/// The first answer and the newest others: from where it came, and where it is.
constexpr size_t kMostAnswers = 4;
constexpr size_t kMostImages = 6;
/// Of a thumbnail of 160 pixels, ten times what it takes.
constexpr size_t kLargestImage = 200'000;
constexpr size_t kLongestText = 2000;

std::string short_text(const nlohmann::json& line, const char* key) {
  return shortened(text_in(line, key), kLongestText);
}

/// Nothing but pictures that are in the text itself: the page loads nothing.
bool is_picture(const std::string& uri) {
  constexpr std::string_view kPrefixes[] = {"data:image/jpeg;base64,", "data:image/png;base64,"};
  for (const auto prefix : kPrefixes) {
    if (uri.starts_with(prefix)) return uri.size() <= kLargestImage;
  }
  return false;
}

/// Null where there are none.
nlohmann::json masks_in(const nlohmann::json& line) {
  nlohmann::json shown;
  const auto masks = line.find("masks");
  if (masks == line.end() || !masks->is_array()) return shown;
  for (const auto& mask : *masks) {
    if (shown.size() == kMostImages) break;
    auto overlay = text_in(mask, "overlay");
    if (!is_picture(overlay)) continue;
    shown.push_back({{"structure", short_text(mask, "structure")},
                     {"dice", number_in(mask, "dice")},
                     {"overlay", std::move(overlay)}});
  }
  return shown;
}

}  // namespace

void RunPredictions::add(const nlohmann::json& line) {
  const std::string id = text_in(line, "id");
  const std::string question = short_text(line, "question");
  const Answer answer{count_in(line, "step"), short_text(line, "given"), masks_in(line)};
  const auto found = std::find_if(asked_.begin(), asked_.end(),
                                  [&](const Asked& asked) { return asked.id == id && asked.question == question; });
  if (found != asked_.end()) {
    auto& answers = found->answers;
    answers.push_back(answer);
    if (answers.size() > kMostAnswers) answers.erase(answers.begin() + 1);
    return;
  }
  Asked asked{.id = id,
              .task = short_text(line, "task"),
              .question = question,
              .expected = short_text(line, "expected"),
              .images = {},
              .captions = {},
              .answers = {answer}};
  add_images(line, asked);
  asked_.push_back(std::move(asked));
  if (asked_.size() > kMostSamples) {
    // The one that was not asked for the longest time.
    asked_.erase(std::min_element(asked_.begin(), asked_.end(), [](const Asked& a, const Asked& b) {
      return a.answers.back().step < b.answers.back().step;
    }));
    ++left_out_;
  }
}

void RunPredictions::add_images(const nlohmann::json& line, Asked& asked) {
  const auto images = line.find("images");
  if (images == line.end() || !images->is_array()) return;
  const auto captions = line.find("captions");
  const bool has_captions = captions != line.end() && captions->is_array() && captions->size() == images->size();
  for (size_t i = 0; i < images->size() && asked.images.size() < kMostImages; ++i) {
    const auto& image = (*images)[i];
    if (!image.is_string() || !is_picture(image.get_ref<const std::string&>())) continue;
    asked.images.push_back(image);
    if (!has_captions) continue;
    const auto& caption = (*captions)[i];
    asked.captions.push_back(caption.is_string() ? shortened(caption.get<std::string>(), kLongestText) : "");
  }
}

nlohmann::json RunPredictions::to_json() const {
  auto samples = nlohmann::json::array();
  for (const auto& asked : asked_) {
    auto answers = nlohmann::json::array();
    for (const auto& answer : asked.answers) {
      auto& shown = answers.emplace_back(nlohmann::json{{"step", answer.step}, {"given", answer.given}});
      if (!answer.masks.is_null()) shown["masks"] = answer.masks;
    }
    samples.push_back({{"id", asked.id},
                       {"task", asked.task},
                       {"question", asked.question},
                       {"expected", asked.expected},
                       {"images", asked.images},
                       {"answers", std::move(answers)}});
    if (!asked.captions.empty()) samples.back()["captions"] = asked.captions;
  }
  return {{"samples", std::move(samples)}, {"left_out", left_out_}};
}

}  // namespace vlmtrain::report
