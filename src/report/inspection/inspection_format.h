#pragma once

#include <string>
#include <vector>

#include "vlmtrain/data/histogram.h"
#include "vlmtrain/models/seen_picture.h"
#include "vlmtrain/report/inspection.h"

namespace vlmtrain::report {

/// A histogram that is shown: what of a sample it counts, and how the numbers lie.
struct NamedHistogram {
  std::string name;  ///< "Tokens"
  std::string text;  ///< "577 to 1,204 a sample, median 621, 95 % up to 900; 1,902,334 in all"
  const data::Histogram* histogram;
};

/// A kind of notice for people.
struct NoticeRow {
  std::string kind;     ///< `key "source" of a record is not read`
  std::string samples;  ///< how many
  std::string example;  ///< a sample's id, and what it has there
  std::string hint;     ///< may be empty
};

/// Of all kinds that the ledger counts.
std::vector<NoticeRow> make_notice_rows(const data::Ledger& ledger);

/// "Tiles", "Patches" or "Grids".
const char* pixel_row_title(const Inspection& inspection);

/// Those that say something: without frames where there is no video.
std::vector<NamedHistogram> list_histograms(const Inspection& inspection);

/// "550 - 599", "3".
std::string format_bin(const data::Histogram::Bin& bin);

/// "575 steps of 16 samples, 3.0 epochs".
std::string format_run_length(const Inspection& inspection);

/// How bad samples are dealt with: "training would stop at 4 of them", "they are dropped".
std::string format_bad_samples(const Inspection& inspection);

/// What the figures of the largest samples are.
std::string describe_largest_samples(const Inspection& inspection);

/// "3,064 samples, 3,060 of which can be used".
std::string format_usable_samples(const data::Ledger& ledger);

/// "weight 2, task vqa", "repeated 0.5 times"; empty for none.
std::string format_source_options(const data::Source& source);

/// "3 images, 12 tiles"; "1 video of 16 frames, 96 patches"; "2 volumes of 96x96x96".
std::string format_media(const data::SampleShape& shape, const Inspection& inspection);

/// How full packs are and what binds them.
std::string format_packs(const Inspection& inspection);

/// "2 ids are those of several samples, the first is q7: …".
std::string format_repeated_ids(const Inspection& inspection);

/// "12.0 million pixels".
std::string format_pixels(int64_t pixels);

/// A picture for a page: a bar for each bin, its count above it, where it begins below it, and all of that where the
/// mouse stands. Colours are those of common.css.
std::string render_histogram_svg(const data::Histogram& histogram);

/// Pictures of a sample for a page, pixel for pixel and with lines between their tiles; of a video at most so many
/// frames, spread over it.
std::string render_media_previews(const std::vector<models::MediaPreview>& previews);

}  // namespace vlmtrain::report
