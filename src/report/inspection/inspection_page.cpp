#include <fmt/format.h>

#include <algorithm>

#include "report/format/html.h"
#include "report/format/text_layout.h"
#include "report/inspection/inspection_sections.h"
#include "vlmtrain/base/base64.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/image/image_file.h"

namespace vlmtrain::report {

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

std::string format_inspection(const Inspection& inspection, const TextStyle& style) {
  TextWriter writer(style);
  writer.add_lines(inspection.stops_training ? "1;31" : "1;32",
                   wrap_text("", format_inspection_headline(inspection), writer.columns()));
  for (const Section& section : make_inspection_sections(inspection)) writer.add_section(section);
  return writer.text();
}

std::string render_inspection_page(const Inspection& inspection) {
  std::string sections;
  for (const Section& section : make_inspection_sections(inspection)) sections += render_section_html(section);
  const char* const media_note =
      inspection.has_grid_rows
          ? "Volumes are shown as the vision tower's input, resampled and normalized: the middle axial, coronal and "
            "sagittal slices, the subject's right on the left."
          : "Images are shown as the vision tower's input before normalization, pixel for pixel; lines separate the "
            "tiles.";
  return fill_page_template(
      "inspection.html",
      {{"title", escape_html_line(inspection.dataset + ": what is trained on")},
       {"style", std::string(resources().at("common.css")) + std::string(resources().at("inspection.css"))},
       {"answer_class", inspection.stops_training ? "fails" : "fits"},
       {"headline", escape_html_line(format_inspection_headline(inspection))},
       {"sections", sections},
       {"media_note", escape_html(media_note)}});
}

std::string highlight_answers(const text::RenderedChat& chat, std::string_view open, std::string_view close,
                              std::string (*escape)(std::string_view)) {
  std::string text;
  const auto add = [&](size_t begin, size_t end) {
    const std::string_view piece = std::string_view(chat.text).substr(begin, end - begin);
    text += escape == nullptr ? std::string(piece) : escape(piece);
  };
  size_t position = 0;
  for (size_t i = 0; i < chat.answers.size(); ++i) {
    const text::TextSpan& answer = chat.answers[i];
    add(position, answer.begin);
    text += open;
    add(answer.begin, answer.end);
    text += close;
    if (!chat.answer_weights.empty() && chat.answer_weights[i] != 1) text += fmt::format("×{}", chat.answer_weights[i]);
    position = answer.end;
  }
  add(position, chat.text.size());
  return text;
}

}  // namespace vlmtrain::report
