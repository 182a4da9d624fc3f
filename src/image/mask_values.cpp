#include "image/mask_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

constexpr int64_t kMostLabels = 192;
constexpr int64_t kMostColors = 256;
/// A file with more values, most of whose pixels are near the highest one, is not one of labels; nor is one with more
/// than kFewValues of whose pixels fewer are low than high.
constexpr int64_t kSoftValues = 64;
constexpr int64_t kFewValues = 8;

/// Bytes of a sample, the upper one first.
int64_t sample_at(const uint8_t* bytes, int64_t bytes_a_sample) {
  return bytes_a_sample == 2 ? bytes[0] << 8 | bytes[1] : bytes[0];
}

/// How often each gray value stands in a file.
struct GrayValues {
  std::vector<int64_t> counts;  // by value
  int64_t distinct = 0;         // beside 0
  int64_t highest = 0;

  explicit GrayValues(int64_t range) : counts(static_cast<size_t>(range) + 1) {}

  void settle() {
    for (size_t value = 1; value < counts.size(); ++value) {
      if (counts[value] == 0) continue;
      ++distinct;
      highest = static_cast<int64_t>(value);
    }
  }
  /// Pixels of the values from `low` to `high`.
  int64_t pixels(int64_t low, int64_t high) const {
    int64_t sum = 0;
    for (int64_t value = low; value <= high; ++value) sum += counts[static_cast<size_t>(value)];
    return sum;
  }
};

/// Nothing where the file has colors.
std::optional<GrayValues> gray_values(const PngSamples& samples) {
  const int64_t bytes = samples.bits == 16 ? 2 : 1;
  GrayValues values(bytes == 2 ? 65535 : 255);
  const uint8_t* pixel = samples.rows.samples.get();
  const int64_t pixels = samples.rows.size.height * samples.rows.size.width;
  for (int64_t i = 0; i < pixels; ++i, pixel += samples.rows.channels) {
    const int64_t value = sample_at(pixel, bytes);
    for (int64_t channel = 1; channel < samples.channels; ++channel) {
      if (sample_at(pixel + channel * bytes, bytes) != value) return std::nullopt;
    }
    ++values.counts[static_cast<size_t>(value)];
  }
  values.settle();
  return values;
}

/// Colors that are not black, counted to one more than kMostColors.
int64_t count_colors(const PngSamples& samples) {
  std::unordered_set<uint64_t> colors;
  const uint8_t* pixel = samples.rows.samples.get();
  const int64_t pixels = samples.rows.size.height * samples.rows.size.width;
  for (int64_t i = 0; i < pixels && std::ssize(colors) <= kMostColors; ++i, pixel += samples.rows.channels) {
    uint64_t color = 0;
    for (int64_t byte = 0; byte < samples.rows.channels; ++byte) color = color << 8 | pixel[byte];
    if (color != 0) colors.insert(color);
  }
  return std::ssize(colors);
}

io::Notice labels_notice(int64_t labels, const char* what, const std::string& name) {
  return {.kind =
              "a mask's file has several labels, all of which are mask; name one of them (the record's `value`) if "
              "it is meant alone",
          .example = fmt::format("{} ({} {} beside 0)", name, labels, what)};
}

UserError refusal(const std::string& what, const std::string& name) {
  return data_error(
      "{}: {}, which is neither a mask (0 and one other value) nor one of labels; save the mask with two values, such "
      "as "
      "0 and 255, or name the value that is meant",
      name, what);
}

MaskRule rule_of_gray(const GrayValues& values, int64_t bits, const std::string& name) {
  // A 16-bit file that was made of an 8-bit one has its range.
  const int64_t range = bits == 16 && values.highest > 255 ? 65535 : 255;
  const int64_t half = range / 2;
  const int64_t high = values.pixels(half + 1, range), low = values.pixels(1, half);
  const bool has_plateau = high > 0 && 2 * values.pixels(range - range / 10, range) >= high;
  const bool is_edge = 4 * low < high || (values.distinct > kFewValues && low < high);
  if (has_plateau && (is_edge || values.distinct > kSoftValues)) {
    return {
        .above = half,
        .notice = io::Notice{.kind = "a mask's file has soft edges or noise; its values above half of the range are "
                                     "mask",
                             .example = fmt::format("{} ({} of {} pixels that are not 0)", name, high, high + low)}};
  }
  if (has_plateau) {
    throw refusal(fmt::format("{} values beside 0, from low ones to {}: noise, or labels beside a border",
                              values.distinct, values.highest),
                  name);
  }
  if (bits != 16 && values.distinct > kMostLabels) throw refusal(fmt::format("{} gray values", values.distinct), name);
  return {.above = 0, .notice = labels_notice(values.distinct, "values", name)};
}

}  // namespace

MaskRule find_mask_rule(const PngSamples& samples, const std::string& name) {
  const auto gray = gray_values(samples);
  if (!gray) {
    const int64_t colors = count_colors(samples);
    if (colors > kMostColors) throw refusal(fmt::format("more than {} colors", kMostColors), name);
    if (colors < 2) return {};
    return {.above = 0, .notice = labels_notice(colors, "colors", name)};
  }
  if (gray->distinct < 2) return {};
  const bool has_labels = samples.bits < 8 || (samples.is_palette && gray->distinct <= kSoftValues);
  if (has_labels || samples.has_colored_palette) {
    return {.above = 0, .notice = labels_notice(gray->distinct, samples.is_palette ? "entries" : "values", name)};
  }
  return rule_of_gray(*gray, samples.bits, name);
}

}  // namespace vlmtrain::image
