#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/data/sample/sample_shape.h"

namespace vlmtrain::data {

/// A histogram of integers with summary statistics. All statistics are 0 if there are no numbers.
struct Histogram {
  /// The number of values from `first` to `last`.
  struct Bin {
    int64_t first = 0;
    int64_t last = 0;  ///< inclusive
    int64_t count = 0;
  };
  /// Bins in ascending order without gaps; the first and the last bin are not empty. All bins have
  /// the same width, except that the last one is wider if the largest hundredth of the numbers lies
  /// far above the others.
  std::vector<Bin> bins;

  int64_t count = 0;
  int64_t sum = 0;
  int64_t min = 0;
  int64_t median = 0;  ///< lower median of an even number of values
  int64_t percentile_95 = 0;
  int64_t max = 0;

  double mean() const { return count > 0 ? static_cast<double>(sum) / static_cast<double>(count) : 0; }
};

/// Returns a histogram of about a dozen bins. Their width is 1, 2 or 5 times a power of ten.
Histogram make_histogram(std::vector<int64_t> numbers);

/// The numbers of samples with media of each kind. A sample may have several kinds.
struct SampleCountsByMediaKind {
  int64_t samples = 0;  ///< number of samples with known shapes
  int64_t num_samples_with_images = 0;
  int64_t num_samples_with_videos = 0;
  int64_t num_samples_with_volumes = 0;
  int64_t num_samples_with_masks = 0;
  int64_t num_samples_without_media = 0;

  /// Returns whether there are samples and none of them has an image, video or volume.
  bool is_text_only() const { return samples > 0 && num_samples_without_media == samples; }
};

/// Counts the samples with known shapes in [begin, end).
SampleCountsByMediaKind count_samples_by_media_kind(const SampleShapes& shapes, int64_t begin, int64_t end);
/// Counts all samples with known shapes.
SampleCountsByMediaKind count_samples_by_media_kind(const SampleShapes& shapes);

}  // namespace vlmtrain::data
