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

std::string spell_below_hundred(size_t number) {
  if (number < kToNineteen.size()) return std::string(kToNineteen.at(number));
  const std::string_view tens = kTens.at(number / 10), ones = kToNineteen.at(number % 10);
  return ones.empty() ? std::string(tens) : fmt::format("{}-{}", tens, ones);
}

/// Python's str(timedelta(seconds=…)).
std::string format_timedelta(int64_t seconds) {
  constexpr int64_t kHour = 3600, kDay = 24 * kHour;
  const int64_t days = seconds / kDay;
  const std::string day_text = days == 0 ? "" : fmt::format("{} day{}, ", days, days == 1 ? "" : "s");
  return fmt::format("{}{}:{:02}:{:02}", day_text, seconds % kDay / kHour, seconds % kHour / 60, seconds % 60);
}

}  // namespace

std::string spell_number(int64_t number) {
  VLMTRAIN_CHECK(number >= 1 && number <= 999, "{} in words", number);
  const auto hundreds = static_cast<size_t>(number / 100), remainder = static_cast<size_t>(number % 100);
  if (hundreds == 0) return spell_below_hundred(remainder);
  const std::string hundreds_text = fmt::format("{} hundred", kToNineteen.at(hundreds));
  return remainder == 0 ? hundreds_text : fmt::format("{} and {}", hundreds_text, spell_below_hundred(remainder));
}

std::string format_video_text(std::span<const double> seconds, double duration, int64_t image_tokens_per_tile) {
  const std::string frame = format_image_text({}, image_tokens_per_tile);
  std::string text = fmt::format("You are provided the following series of {} frames from a {} [H:MM:SS] video.\n",
                                 spell_number(std::ssize(seconds)), format_timedelta(static_cast<int64_t>(duration)));
  for (const double time : seconds) {
    const auto truncated = static_cast<int64_t>(time);
    text += fmt::format("\nFrame from {:02}:{:02}:{}", truncated / 60, truncated % 60, frame);
  }
  return text + "\n\n";
}

VideoText make_video_text(const VideoSettings& settings, const image::VideoInfo& video, int64_t image_tokens_per_tile) {
  const double fps = settings.get_fps(video);
  std::vector<double> seconds;
  for (const int64_t frame : settings.sample(video)) seconds.push_back(static_cast<double>(frame) / fps);
  return {.text = format_video_text(seconds, static_cast<double>(video.frames) / fps, image_tokens_per_tile),
          .frames = std::ssize(seconds)};
}

}  // namespace vlmtrain::models::idefics3
