#include "report/histogram_svg.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/inspection/inspection_format.h"
#include "vlmtrain/base/number_words.h"

namespace vlmtrain::report {

namespace {

constexpr double kWidth = 460, kHeight = 168;
constexpr double kTopMargin = 16, kBottomMargin = 18;  // of the bars: room for numbers
constexpr double kMaxBarWidth = 64;

/// "640", "12k", "1.3M": in the width of a bar.
std::string abbreviate_number(int64_t number) {
  constexpr int64_t kThousand = 1000, kMillion = 1'000'000;
  const auto value = static_cast<double>(number);
  if (number >= 10 * kMillion) return fmt::format("{}M", number / kMillion);
  if (number >= kMillion) return fmt::format("{:.1f}M", value / static_cast<double>(kMillion));
  if (number >= 100 * kThousand) return fmt::format("{}k", number / kThousand);
  if (number >= 10 * kThousand) return fmt::format("{:.1f}k", value / static_cast<double>(kThousand));
  return std::to_string(number);
}

}  // namespace

std::string render_histogram_svg(const data::Histogram& histogram) {
  std::string svg = fmt::format(R"(<svg class="histogram" viewBox="0 0 {} {}" role="img">)", kWidth, kHeight);
  const auto& bins = histogram.bins;
  int64_t max_count = 1;
  for (const auto& bin : bins) max_count = std::max(max_count, bin.count);
  const double step = std::min(kMaxBarWidth, kWidth / static_cast<double>(std::max<size_t>(bins.size(), 1)));
  const double baseline = kHeight - kBottomMargin, max_bar_height = baseline - kTopMargin;
  const bool is_crowded = bins.size() > 9;
  for (size_t i = 0; i < bins.size(); ++i) {
    const auto& bin = bins[i];
    const double fraction = static_cast<double>(bin.count) / static_cast<double>(max_count);
    const double height = bin.count > 0 ? std::max(1.0, fraction * max_bar_height) : 0;
    const double bar_left = static_cast<double>(i) * step, bar_center = bar_left + step / 2;
    const bool is_tail = i > 0 && bin.last - bin.first > bins.front().last - bins.front().first;
    svg += fmt::format(R"(<g><title>{}: {}</title><rect class="hit" x="{:.1f}" y="0" width="{:.1f}" height="{}"/>)",
                       format_bin(bin), pluralize(bin.count, "sample"), bar_left, step, kHeight);
    svg += fmt::format(R"(<rect class="bar{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>)",
                       is_tail ? " tail" : "", bar_left + 1, baseline - height, step - 2, height);
    if (bin.count > 0) {
      svg += fmt::format(R"(<text x="{:.1f}" y="{:.1f}">{}</text>)", bar_center, baseline - height - 4,
                         abbreviate_number(bin.count));
    }
    if (!is_crowded || i % 2 == 0 || is_tail) {
      svg += fmt::format(R"(<text class="axis" x="{:.1f}" y="{}">{}{}</text>)", bar_center, kHeight - 4,
                         is_tail ? "≥ " : "", abbreviate_number(bin.first));
    }
    svg += "</g>";
  }
  return svg + fmt::format(R"(<path class="floor" d="M0 {0}H{1}"/></svg>)", baseline, kWidth);
}

}  // namespace vlmtrain::report
