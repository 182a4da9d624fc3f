#include "report/inspection/inspection_format.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/format/html.h"
#include "vlmtrain/base/base64.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/image/encode.h"
#include "vlmtrain/report/inspection.h"

namespace vlmtrain::report {

namespace {

NamedHistogram make_named_histogram(const std::string& name, const data::Histogram& histogram) {
  std::string text =
      histogram.min == histogram.max
          ? fmt::format("{} each", format_with_commas(histogram.min))
          : fmt::format("{} to {} per sample, median {}, 95 % up to {}", format_with_commas(histogram.min),
                        format_with_commas(histogram.max), format_with_commas(histogram.median),
                        format_with_commas(histogram.percentile_95));
  return {.name = name,
          .text = text + fmt::format("; {} in total", format_with_commas(histogram.sum)),
          .histogram = &histogram};
}

double to_percent(double share) {
  return 100 * share;
}

}  // namespace

const char* get_pixel_row_label(const Inspection& inspection) {
  return inspection.has_patch_rows ? "Patches" : inspection.has_grid_rows ? "Grids" : "Tiles";
}

std::vector<NamedHistogram> list_histograms(const Inspection& inspection) {
  if (inspection.tokens.count == 0) return {};
  std::vector<NamedHistogram> histograms{make_named_histogram("Tokens", inspection.tokens),
                                         make_named_histogram("Label tokens", inspection.label_tokens)};
  if (inspection.images.max > 0) histograms.push_back(make_named_histogram("Images", inspection.images));
  if (inspection.volumes.max > 0) histograms.push_back(make_named_histogram("Volumes", inspection.volumes));
  // Each volume is one grid, except for series.
  if (inspection.pixel_rows.max > 0 && inspection.pixel_rows.sum != inspection.volumes.sum) {
    histograms.push_back(make_named_histogram(get_pixel_row_label(inspection), inspection.pixel_rows));
  }
  if (inspection.video_frames.max > 0)
    histograms.push_back(make_named_histogram("Frames of videos", inspection.video_frames));
  return histograms;
}

std::string format_bin(const data::Histogram::Bin& bin) {
  return bin.first == bin.last ? format_with_commas(bin.first)
                               : fmt::format("{} - {}", format_with_commas(bin.first), format_with_commas(bin.last));
}

std::string format_training_length(const Inspection& inspection) {
  if (!inspection.sample_order_error.empty()) return "none: " + inspection.sample_order_error;
  std::string text = fmt::format("{} of {}", pluralize(inspection.steps, "step"),
                                 pluralize(inspection.global_batch_size, inspection.pack_limits ? "pack" : "sample"));
  if (inspection.epochs > 0)
    text += fmt::format(", {:.3g} {}", inspection.epochs, inspection.epochs == 1 ? "epoch" : "epochs");
  return text;
}

std::string format_inspection_headline(const Inspection& inspection) {
  std::string text = format_usable_samples(inspection.ledger);
  if (inspection.num_bad_samples() > 0) text += fmt::format("; {}", format_bad_samples(inspection));
  if (!inspection.sample_order_error.empty() && inspection.num_usable_samples() > 0)
    text += fmt::format("; {}", inspection.sample_order_error);
  if (inspection.is_text_only()) text += "; none of them has an image, video or volume";
  return text;
}

std::vector<NoticeRow> make_notice_rows(const data::Ledger& ledger) {
  std::vector<NoticeRow> rows;
  for (const auto& [kind, count] : ledger.notices().kinds()) {
    rows.push_back({.kind = data::describe_notice(kind),
                    .samples = format_with_commas(count.samples),
                    .example = count.example.empty()
                                   ? to_printable(count.id)
                                   : fmt::format("{}: {}", to_printable(count.id), make_excerpt(count.example)),
                    .hint = data::get_notice_hint(kind)});
  }
  return rows;
}

std::string format_bad_samples(const Inspection& inspection) {
  const int64_t num_failed = inspection.ledger.count(data::SampleStatus::kFailed);
  const int64_t num_dropped = inspection.ledger.count(data::SampleStatus::kDropped);
  if (num_failed == 0)
    return num_dropped == 1 ? "1 is dropped" : fmt::format("{} are dropped", format_with_commas(num_dropped));
  std::string text =
      fmt::format("{} would stop training ({}=fail)", format_with_commas(num_failed), keys::data::kOnBadSample);
  return num_dropped > 0 ? text + fmt::format(", {} are dropped", format_with_commas(num_dropped)) : text;
}

std::string describe_largest_samples(const Inspection& inspection) {
  if (!inspection.memory_prediction_target) {
    return "Ranked by size: one of these needs the most memory; --gpu NAME or --gpu-gb GB predicts how much.";
  }
  return fmt::format(
      "Memory: a step with that sample alone on {}, with the plan's recomputation and the CUDA context; from a dry run "
      "on a virtual GPU, not measured. Plan of the run: {}.",
      inspection.memory_prediction_target->gpu, inspection.memory_prediction_target->plan_headline);
}

std::string format_usable_samples(const data::Ledger& ledger) {
  const int64_t num_bad_samples =
      ledger.count(data::SampleStatus::kDropped) + ledger.count(data::SampleStatus::kFailed);
  return fmt::format("{}, {} of which can be used", pluralize(ledger.num_samples(), "sample"),
                     num_bad_samples == 0 ? "all"
                     : num_bad_samples == ledger.num_samples()
                         ? "none"
                         : format_with_commas(ledger.num_samples() - num_bad_samples));
}

std::string format_source_options(const data::Source& source) {
  std::string text;
  if (source.weight) text = fmt::format("weight {:g}", *source.weight);
  if (source.repeat) text = fmt::format("repeated {:g} times", *source.repeat);
  if (source.task.empty()) return text;
  return fmt::format("{}{}task {}", text, text.empty() ? "" : ", ", source.task);
}

std::string format_media(const data::SampleShape& shape, const Inspection& inspection) {
  if (shape.num_media() == 0) return inspection.has_grid_rows ? "no volume" : "no image";
  if (inspection.has_grid_rows) return data::describe_media(shape);
  return fmt::format("{}, {} {}", data::describe_media(shape), format_with_commas(shape.pixel_rows),
                     inspection.pixel_row_name());
}

std::string format_packs(const Inspection& inspection) {
  const auto& packs = inspection.pack_statistics;
  const auto& limits = *inspection.pack_limits;
  std::string text = fmt::format(
      "{} in the first epoch; {:.1f} % of {} tokens and {:.1f} % of {} {} are used. Packs limited by "
      "tokens: {}, by {}: {}",
      pluralize(packs.fill.num_packs, "pack"), to_percent(packs.fill.token_fill), format_with_commas(limits.max_tokens),
      to_percent(packs.fill.media_fill), limits.max_media, inspection.media_name(),
      format_with_commas(packs.num_token_limited_packs()), inspection.media_name(),
      format_with_commas(packs.num_packs_at_media_limit));
  if (limits.max_tiles)
    text += fmt::format(", by {}: {}", inspection.pixel_row_name(), format_with_commas(packs.num_packs_at_tile_limit));
  return text + fmt::format(". Most {} in one pack: {}", inspection.pixel_row_name(),
                            format_with_commas(packs.fill.max_tiles));
}

std::string format_repeated_ids(const Inspection& inspection) {
  const bool is_single_id = inspection.num_repeated_ids == 1;
  return fmt::format("{} {} by several samples{}{}; the ledger distinguishes them by index, --record uses the first",
                     pluralize(inspection.num_repeated_ids, "id"), is_single_id ? "is shared" : "are shared",
                     is_single_id ? ", " : ", the first is ", to_printable(inspection.first_repeated_id));
}

std::string format_pixels(int64_t pixels) {
  constexpr double kMillion = 1e6;
  const double millions = static_cast<double>(pixels) / kMillion;
  return millions >= 0.1 ? fmt::format("{:.1f} million pixels", millions)
                         : fmt::format("{} pixels", format_with_commas(pixels));
}

namespace {

/// Size of the chart in units of the SVG's view box. Not tuned.
constexpr double kChartWidth = 460, kChartHeight = 168;
constexpr double kTopMargin = 16, kBottomMargin = 18;  // space for labels above and below the bars
/// Maximum width of a bar, so that a few bins do not fill the chart.
constexpr double kMaxBarWidth = 64;

/// Returns "640", "12k", "1.3M", short enough for the width of a bar.
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
  std::string svg = fmt::format(R"(<svg class="histogram" viewBox="0 0 {} {}" role="img">)", kChartWidth, kChartHeight);
  const auto& bins = histogram.bins;
  int64_t max_count = 1;
  for (const auto& bin : bins) max_count = std::max(max_count, bin.count);
  const double bar_width = std::min(kMaxBarWidth, kChartWidth / static_cast<double>(std::max<size_t>(bins.size(), 1)));
  const double baseline_y = kChartHeight - kBottomMargin, max_bar_height = baseline_y - kTopMargin;
  // With more bins, neighboring labels would overlap: only every second one is drawn.
  const bool omits_every_second_label = bins.size() > 9;
  for (size_t i = 0; i < bins.size(); ++i) {
    const auto& bin = bins[i];
    const double fraction = static_cast<double>(bin.count) / static_cast<double>(max_count);
    const double height = bin.count > 0 ? std::max(1.0, fraction * max_bar_height) : 0;
    const double bar_left = static_cast<double>(i) * bar_width, bar_center = bar_left + bar_width / 2;
    // The last bin may be wider (data::Histogram).
    const bool is_tail_bin = i > 0 && bin.last - bin.first > bins.front().last - bins.front().first;
    svg += fmt::format(R"(<g><title>{}: {}</title><rect class="hit" x="{:.1f}" y="0" width="{:.1f}" height="{}"/>)",
                       format_bin(bin), pluralize(bin.count, "sample"), bar_left, bar_width, kChartHeight);
    svg += fmt::format(R"(<rect class="bar{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>)",
                       is_tail_bin ? " tail" : "", bar_left + 1, baseline_y - height, bar_width - 2, height);
    if (bin.count > 0) {
      svg += fmt::format(R"(<text x="{:.1f}" y="{:.1f}">{}</text>)", bar_center, baseline_y - height - 4,
                         abbreviate_number(bin.count));
    }
    if (!omits_every_second_label || i % 2 == 0 || is_tail_bin) {
      svg += fmt::format(R"(<text class="axis" x="{:.1f}" y="{}">{}{}</text>)", bar_center, kChartHeight - 4,
                         is_tail_bin ? "≥ " : "", abbreviate_number(bin.first));
    }
    svg += "</g>";
  }
  return svg + fmt::format(R"(<path class="floor" d="M0 {0}H{1}"/></svg>)", baseline_y, kChartWidth);
}

namespace {

/// Frames of a video or series that are shown, so that the page stays small. Not tuned.
constexpr int64_t kMaxShownFrames = 16;

std::string render_tile_lines(const models::MediaPreview& preview) {
  const int64_t height = preview.pixels.size(1), width = preview.pixels.size(2);
  std::string lines;
  for (int64_t top = preview.tile_height; top < height; top += preview.tile_height) {
    lines += fmt::format("M0 {}H{}", top, width);
  }
  for (int64_t left = preview.tile_width; left < width; left += preview.tile_width) {
    lines += fmt::format("M{} 0V{}", left, height);
  }
  return lines.empty() ? "" : fmt::format(R"(<path class="tiles" d="{}"/>)", lines);
}

/// Returns the outlines of the boxes and crosses for the points.
std::string render_boxes(const models::MediaPreview& preview) {
  constexpr double kCrossArm = 6;  // pixels of the image; chosen by eye
  std::string elements;
  for (const image::Box& box : preview.boxes) {
    const auto [x1, y1] = box.top_left;
    const auto [x2, y2] = box.bottom_right;
    if (box.is_point()) {
      elements += fmt::format(R"(<path class="box" d="M{:.1f} {:.1f}h{}M{:.1f} {:.1f}v{}"/>)", x1 - kCrossArm, y1,
                              2 * kCrossArm, x1, y1 - kCrossArm, 2 * kCrossArm);
    } else {
      elements += fmt::format(R"(<path class="box" d="M{:.1f} {:.1f}H{:.1f}V{:.1f}H{:.1f}Z"/>)", x1, y1, x2, y2, x1);
    }
  }
  return elements;
}

std::string format_volume_caption(const models::MediaPreview& preview, int64_t num_frames) {
  const auto& [right, front, top] = preview.volume_size;
  std::string text = fmt::format("volume {}: {} × {} × {}", preview.media_index + 1, right, front, top);
  if (num_frames > 1) text += fmt::format(", frame {} of {}", preview.frame_index + 1, num_frames);
  if (!preview.name.empty()) text += fmt::format(", {}", escape_html(to_printable(preview.name)));
  return text;
}

std::string format_caption(const models::MediaPreview& preview, int64_t num_frames) {
  if (preview.is_volume()) return format_volume_caption(preview, num_frames);
  const int64_t height = preview.pixels.size(1), width = preview.pixels.size(2);
  std::string text =
      fmt::format("{}{}: {} × {}", num_frames > 1 ? "video " : "", preview.media_index + 1, width, height);
  if (num_frames > 1) text += fmt::format(", frame {} of {}", preview.frame_index + 1, num_frames);
  const int64_t rows = height / preview.tile_height, columns = width / preview.tile_width;
  if (rows * columns > 1) text += fmt::format(", {} × {} tiles", columns, rows);
  if (preview.is_overview) text += ", overview";
  if (preview.is_crop) text += ", crop";
  if (!preview.boxes.empty()) text += ", " + pluralize(std::ssize(preview.boxes), "object");
  return text;
}

std::string render_media_figure(const models::MediaPreview& preview, int64_t num_frames) {
  const int64_t height = preview.pixels.size(1), width = preview.pixels.size(2);
  return fmt::format(
      R"(<figure{}><svg viewBox="0 0 {} {}"><image width="{}" height="{}" href="data:image/png;base64,{}"/>{}{}</svg>)"
      "<figcaption>{}</figcaption></figure>\n",
      preview.is_overview || num_frames > 1 ? R"( class="small")" : "", width, height, width, height,
      base64_encode(image::encode_png(preview.pixels.contiguous())), render_tile_lines(preview), render_boxes(preview),
      format_caption(preview, num_frames));
}

}  // namespace

std::string render_media_previews(const std::vector<models::MediaPreview>& previews) {
  std::string html;
  for (auto first = previews.begin(); first != previews.end();) {
    const auto end =
        std::find_if(first, previews.end(), [&](const auto& other) { return other.media_index != first->media_index; });
    const auto is_frame = [](const models::MediaPreview& preview) { return preview.frame_index > 0; };
    const int64_t num_frames = std::any_of(first, end, is_frame) ? end - first : 1;
    const int64_t num_shown_previews = num_frames > 1 ? std::min(num_frames, kMaxShownFrames) : end - first;
    for (int64_t i = 0; i < num_shown_previews; ++i)
      html += render_media_figure(first[num_frames > 1 ? i * num_frames / num_shown_previews : i], num_frames);
    first = end;
  }
  return html;
}

}  // namespace vlmtrain::report
