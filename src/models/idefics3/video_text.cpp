#include "models/idefics3/video_text.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <vector>

#include "models/idefics3/image_text.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::idefics3 {

namespace {

constexpr std::array<std::string_view, 20> kToNineteen{
    "",    "one",    "two",    "three",    "four",     "five",    "six",     "seven",     "eight",    "nine",
    "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
constexpr std::array<std::string_view, 10> kTens{"",      "",      "twenty",  "thirty", "forty",
                                                 "fifty", "sixty", "seventy", "eighty", "ninety"};

std::string below_hundred(size_t number) {
  if (number < kToNineteen.size()) return std::string(kToNineteen.at(number));
  const std::string_view tens = kTens.at(number / 10), ones = kToNineteen.at(number % 10);
  return ones.empty() ? std::string(tens) : fmt::format("{}-{}", tens, ones);
}

/// Python's str(timedelta(seconds=…)).
std::string hours_minutes_seconds(int64_t seconds) {
  constexpr int64_t kHour = 3600, kDay = 24 * kHour;
  const int64_t days = seconds / kDay;
  const std::string whole_days = days == 0 ? "" : fmt::format("{} day{}, ", days, days == 1 ? "" : "s");
  return fmt::format("{}{}:{:02}:{:02}", whole_days, seconds % kDay / kHour, seconds % kHour / 60, seconds % 60);
}

}  // namespace

std::string number_in_words(int64_t number) {
  VLMTRAIN_CHECK(number >= 1 && number <= 999, "{} in words", number);
  const auto hundreds = static_cast<size_t>(number / 100), rest = static_cast<size_t>(number % 100);
  if (hundreds == 0) return below_hundred(rest);
  const std::string words = fmt::format("{} hundred", kToNineteen.at(hundreds));
  return rest == 0 ? words : fmt::format("{} and {}", words, below_hundred(rest));
}

std::string video_text(std::span<const double> seconds, double duration, int64_t image_tokens_per_tile) {
  const std::string frame = image_text({}, image_tokens_per_tile);
  std::string text =
      fmt::format("You are provided the following series of {} frames from a {} [H:MM:SS] video.\n",
                  number_in_words(std::ssize(seconds)), hours_minutes_seconds(static_cast<int64_t>(duration)));
  for (const double at : seconds) {
    const auto whole = static_cast<int64_t>(at);
    text += fmt::format("\nFrame from {:02}:{:02}:{}", whole / 60, whole % 60, frame);
  }
  return text + "\n\n";
}

VideoText text_of_video(const VideoSettings& settings, const image::VideoInfo& video, int64_t image_tokens_per_tile) {
  const double fps = settings.fps_of(video);
  std::vector<double> seconds;
  for (const int64_t frame : settings.sample(video)) seconds.push_back(static_cast<double>(frame) / fps);
  return {.text = video_text(seconds, static_cast<double>(video.frames) / fps, image_tokens_per_tile),
          .frames = std::ssize(seconds)};
}

}  // namespace vlmtrain::models::idefics3
