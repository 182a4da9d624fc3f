#include "image/mask_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "vlmtrain/base/error.h"

namespace vlmtrain::image {
namespace {

/// The maximum number of gray values of a label map without a palette. An 8-bit photograph has most
/// of the 256 values. Chosen without measurement.
constexpr int64_t kMaxGrayLabels = 192;
/// The maximum number of colors of an RGB label map: the maximum size of a palette.
constexpr int64_t kMaxColorLabels = 256;

// The limits between soft masks and label maps, for files with a bright interior. Chosen without
// measurement; tests/image/mask_values_test.cpp has masks shrunk with several filters and masks
// that were JPEG files.

/// A file with more values than this is a soft mask, however many pixels have low values. A palette
/// with at most this many entries holds labels.
constexpr int64_t kMaxAmbiguousValues = 64;
/// A file with more values than this is a soft mask if fewer pixels have low values than high ones.
constexpr int64_t kMaxHardEdgeValues = 8;
/// A file with any number of values is a soft mask if the high values have more than this many
/// times the pixels of the low values: a region has more pixels inside than at its edge.
constexpr int64_t kMinInteriorToEdgeRatio = 4;

/// Returns the value of a big-endian sample.
int64_t read_big_endian_sample(const uint8_t* bytes, int64_t bytes_per_sample) {
  return bytes_per_sample == 2 ? bytes[0] << 8 | bytes[1] : bytes[0];
}

/// The histogram of a file's gray values.
struct GrayHistogram {
  std::vector<int64_t> counts;      // number of pixels, indexed by value
  int64_t num_distinct_values = 0;  // number of values that occur, without 0
  int64_t max_value = 0;            // highest value that occurs

  /// `range`: the highest value that the samples can have.
  explicit GrayHistogram(int64_t range) : counts(static_cast<size_t>(range) + 1) {}

  /// Computes `num_distinct_values` and `max_value` from `counts`.
  void compute_statistics() {
    for (size_t value = 1; value < counts.size(); ++value) {
      if (counts[value] == 0) continue;
      ++num_distinct_values;
      max_value = static_cast<int64_t>(value);
    }
  }
  /// Returns the number of pixels with values in [first, last].
  int64_t count_pixels(int64_t first, int64_t last) const {
    int64_t sum = 0;
    for (int64_t value = first; value <= last; ++value) sum += counts[static_cast<size_t>(value)];
    return sum;
  }
};

/// Returns the histogram, or nothing if a pixel is not gray. The three samples of a gray RGB pixel
/// are equal.
std::optional<GrayHistogram> compute_gray_histogram(const PngSamples& samples) {
  const int64_t bytes_per_sample = samples.bit_depth == 16 ? 2 : 1;
  GrayHistogram histogram(bytes_per_sample == 2 ? 65535 : 255);
  const uint8_t* pixel = samples.pixels.samples.get();
  const int64_t num_pixels = samples.pixels.size.height * samples.pixels.size.width;
  for (int64_t i = 0; i < num_pixels; ++i, pixel += samples.pixels.num_channels) {
    const int64_t value = read_big_endian_sample(pixel, bytes_per_sample);
    for (int64_t channel = 1; channel < samples.num_channels; ++channel) {
      if (read_big_endian_sample(pixel + channel * bytes_per_sample, bytes_per_sample) != value) return std::nullopt;
    }
    ++histogram.counts[static_cast<size_t>(value)];
  }
  histogram.compute_statistics();
  return histogram;
}

/// Returns the number of colors other than black. Stops counting at kMaxColorLabels + 1.
int64_t count_colors(const PngSamples& samples) {
  std::unordered_set<uint64_t> colors;
  const uint8_t* pixel = samples.pixels.samples.get();
  const int64_t num_pixels = samples.pixels.size.height * samples.pixels.size.width;
  for (int64_t i = 0; i < num_pixels && std::ssize(colors) <= kMaxColorLabels;
       ++i, pixel += samples.pixels.num_channels) {
    uint64_t color = 0;
    for (int64_t byte = 0; byte < samples.pixels.num_channels; ++byte) color = color << 8 | pixel[byte];
    if (color != 0) colors.insert(color);
  }
  return std::ssize(colors);
}

/// `unit`: the plural noun for `num_labels`, such as "colors".
io::Notice make_labels_notice(int64_t num_labels, const char* unit, const std::string& name) {
  return {
      .kind = "a mask file has several labels, which all count as mask; set `value` in the record to use one of them",
      .example = fmt::format("{} ({} {} other than 0)", name, num_labels, unit)};
}

/// `problem`: a noun phrase for the content of the file.
UserError make_ambiguous_mask_error(const std::string& problem, const std::string& name) {
  return data_error(
      "{}: {}, neither a binary mask nor a label map; save the mask with two values, such as 0 and 255, or set the "
      "record's `value`",
      name, problem);
}

/// Finds the rule for a gray file with at least two values other than 0. `bit_depth`: per sample.
MaskRule find_gray_mask_rule(const GrayHistogram& histogram, int64_t bit_depth, const std::string& name) {
  // A 16-bit file may hold 8-bit values.
  const int64_t range = bit_depth == 16 && histogram.max_value > 255 ? 65535 : 255;
  const int64_t half_range = range / 2;
  const int64_t num_high_pixels = histogram.count_pixels(half_range + 1, range),
                num_low_pixels = histogram.count_pixels(1, half_range);
  // Most of the bright pixels lie in the upper tenth of the range.
  const bool has_bright_interior =
      num_high_pixels > 0 && 2 * histogram.count_pixels(range - range / 10, range) >= num_high_pixels;
  const bool has_soft_edges = kMinInteriorToEdgeRatio * num_low_pixels < num_high_pixels ||
                              (histogram.num_distinct_values > kMaxHardEdgeValues && num_low_pixels < num_high_pixels);
  if (has_bright_interior && (has_soft_edges || histogram.num_distinct_values > kMaxAmbiguousValues)) {
    return {.threshold = half_range,
            .notice =
                io::Notice{.kind = "a mask file has soft edges or noise; values above half of the range count as mask",
                           .example = fmt::format("{} ({} of {} pixels that are not 0)", name, num_high_pixels,
                                                  num_high_pixels + num_low_pixels)}};
  }
  if (has_bright_interior) {
    throw make_ambiguous_mask_error(
        fmt::format("{} values other than 0, from low ones to {}: noise, or labels and a border",
                    histogram.num_distinct_values, histogram.max_value),
        name);
  }
  // kMaxGrayLabels is a limit for 8-bit samples only.
  if (bit_depth != 16 && histogram.num_distinct_values > kMaxGrayLabels)
    throw make_ambiguous_mask_error(fmt::format("{} gray values", histogram.num_distinct_values), name);
  return {.threshold = 0, .notice = make_labels_notice(histogram.num_distinct_values, "values", name)};
}

}  // namespace

MaskRule find_mask_rule(const PngSamples& samples, const std::string& name) {
  const auto histogram = compute_gray_histogram(samples);
  if (!histogram) {
    const int64_t num_colors = count_colors(samples);
    if (num_colors > kMaxColorLabels)
      throw make_ambiguous_mask_error(fmt::format("more than {} colors", kMaxColorLabels), name);
    if (num_colors < 2) return {};
    return {.threshold = 0, .notice = make_labels_notice(num_colors, "colors", name)};
  }
  if (histogram->num_distinct_values < 2) return {};
  // Samples below 8 bits, and palettes with few or colored entries, are labels even if their
  // histogram looks like that of soft edges.
  const bool is_label_map =
      samples.bit_depth < 8 || (samples.is_palette && histogram->num_distinct_values <= kMaxAmbiguousValues);
  if (is_label_map || samples.has_non_identity_palette) {
    return {
        .threshold = 0,
        .notice = make_labels_notice(histogram->num_distinct_values, samples.is_palette ? "entries" : "values", name)};
  }
  return find_gray_mask_rule(*histogram, samples.bit_depth, name);
}

}  // namespace vlmtrain::image
