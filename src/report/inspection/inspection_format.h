#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/data/sample/statistics.h"
#include "vlmtrain/models/media_preview.h"
#include "vlmtrain/report/inspection.h"

namespace vlmtrain::report {

/// A histogram with its name and summary.
struct NamedHistogram {
  std::string name;                  ///< "Tokens"
  std::string text;                  ///< "577 to 1,204 per sample, median 621, 95 % up to 900; 1,902,334 in total"
  const data::Histogram* histogram;  ///< not owned; belongs to the inspection
};

/// A kind of notice, as text.
struct NoticeRow {
  std::string kind;     ///< `key "source" of a record is not read`
  std::string samples;  ///< number of samples
  std::string example;  ///< id of a sample, and the value that caused the notice
  std::string hint;     ///< fix; may be empty
};

/// Returns a row for each kind in the ledger.
std::vector<NoticeRow> make_notice_rows(const data::Ledger& ledger);

/// Returns the title of the pixel rows: "Tiles", "Patches" or "Grids".
const char* get_pixel_row_label(const Inspection& inspection);

/// Returns the histograms that carry information, such as frames only if there are videos.
std::vector<NamedHistogram> list_histograms(const Inspection& inspection);

/// Returns "550 - 599" or "3".
std::string format_bin(const data::Histogram::Bin& bin);

/// Returns "575 steps of 16 samples, 3.0 epochs".
std::string format_training_length(const Inspection& inspection);

/// Returns the handling of bad samples: "4 would stop training", "3 are dropped".
std::string format_bad_samples(const Inspection& inspection);

/// Returns the explanation of the list of the largest samples: their order, or the memory given.
std::string describe_largest_samples(const Inspection& inspection);

/// Returns "3,064 samples, 3,060 of which can be used".
std::string format_usable_samples(const data::Ledger& ledger);

/// Returns the verb after a number: "is" or "are".
inline const char* get_is_or_are(int64_t number) {
  return number == 1 ? "is" : "are";
}

/// Returns the verb after a number: "has" or "have".
inline const char* get_has_or_have(int64_t number) {
  return number == 1 ? "has" : "have";
}

/// Returns "weight 2, task vqa" or "repeated 0.5 times"; empty without options.
std::string format_source_options(const data::Source& source);

/// Returns "3 images, 12 tiles", "1 video of 16 frames, 96 patches" or "2 volumes of 96x96x96".
std::string format_media(const data::SampleShape& shape, const Inspection& inspection);

/// Returns a description of the packs: how full they are and which limits they reach.
std::string format_packs(const Inspection& inspection);

/// Returns "2 ids are shared by several samples, the first is q7; …".
std::string format_repeated_ids(const Inspection& inspection);

/// Returns "12.0 million pixels".
std::string format_pixels(int64_t pixels);

/// Returns an SVG with a bar for each bin, its count above it, its first value below it, and both
/// as a tooltip. Colors are those of common.css.
std::string render_histogram_svg(const data::Histogram& histogram);

/// Returns the media of a sample as HTML, pixel by pixel, with lines between tiles. At most 16
/// frames of a video or series are shown, evenly spaced.
std::string render_media_previews(const std::vector<models::MediaPreview>& previews);

}  // namespace vlmtrain::report
